// Starts every page: draws the header, sets the theme and loads the module of the page.

import { base, button, chip, el, fetchJson, fill, icon, link, loadStyles } from "./dom.js";

// Each page is one module, which is loaded only when it is opened.
const pages = {
  play: () => import("./play.js"),
  runs: () => withRunStyles(import("./runs.js")),
  view: () => withRunStyles(import("./view.js")),
  compare: () => withRunStyles(import("./compare.js")),
  fork: () => withRunStyles(import("./fork.js")),
  fleet: () => withRunStyles(import("./fleet.js")),
};

/** Loads the styles of the pages about runs. */
async function withRunStyles(page) {
  await loadStyles("runs.css");
  return page;
}

const THEME = "acorn-theme";

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

function isDark() {
  const name = document.documentElement.dataset.theme;
  return name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function header(top, { agent, fleet }, path) {
  const current = (is) => (is ? { "aria-current": "page" } : {});
  const toggle = button("", () => {
    const name = isDark() ? "light" : "dark";
    setTheme(name);
    localStorage.setItem(THEME, name);
    drawToggle();
    document.dispatchEvent(new Event("theme"));
  }, { look: "bare" });
  const drawToggle = () => {
    toggle.setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
    fill(toggle, icon(isDark() ? "sun" : "moon"));
  };
  drawToggle();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawToggle();
    document.dispatchEvent(new Event("theme"));
  });
  fill(top,
    link([el("img", { src: `${base}/static/acorn.svg`, alt: "", width: 24, height: 24 }), el("span", {}, agent?.name ?? "acorn")], agent ? "/" : "/runs/", { class: "brand" }),
    agent?.model && chip(agent.model, "mono model"),
    el("nav", { "aria-label": "Pages" }, agent && link("Play", "/", current(path === "/")), link("Runs", "/runs/", current(path.startsWith("/runs"))), fleet && link("Fleet", "/fleet", current(path === "/fleet"))),
    toggle);
}

async function start() {
  setTheme(localStorage.getItem(THEME));
  const main = document.getElementById("main");
  const path = location.pathname.slice(base.length) || "/";
  const isView = path.startsWith("/runs/") && path.length > "/runs/".length;
  const loading = fetchJson("/api/agent");
  const headerDrawn = loading.then((site) => header(document.getElementById("top"), site, path));
  if (isView) {  // The view does not need the agent.
    const { viewPage } = await pages.view();
    return viewPage(main, decodeURIComponent(path.slice("/runs/".length)));
  }
  if (path === "/compare") return (await pages.compare()).comparePage(main);
  const site = await loading;
  await headerDrawn;
  if (site.error) return fill(main, el("p", { class: "wait wrong" }, site.error));
  if (path.startsWith("/runs/")) return (await pages.runs()).runsPage(main, site);
  if (path === "/fleet") return (await pages.fleet()).fleetPage(main, site);
  if (!site.agent) return location.replace(`${base}${site.fleet ? "/fleet" : "/runs/"}`);
  if (path === "/fork") return (await pages.fork()).forkPage(main, site.agent);
  return (await pages.play()).playPage(main, site.agent);
}

start();
