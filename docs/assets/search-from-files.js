// Where the pages are read from files, a browser starts no worker, and the search would not work: it runs in a hidden
// frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (said) =>
        setTimeout(() => {
          const event = new MessageEvent("message", { data: structuredClone(said) });
          this.onmessage?.(event);
          this.dispatchEvent(event);
        });
      this.loaded = new Promise((ready) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, location.href);
        script.onload = ready;
        inside.document.body.append(script);
      });
    }

    postMessage(said) {
      const inside = this.frame.contentWindow;
      const data = structuredClone(said);
      this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
