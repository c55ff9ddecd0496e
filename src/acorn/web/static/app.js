// The frame of the page: the header, light and dark, and which page it is.

import { ask, base, button, chip, el, fill, icon, link, sheet } from "./dom.js";

// A page loads what it needs and no more. Another page is a line here and a file beside.
const pages = {
  play: () => import("./play.js"),
  runs: () => looking(import("./runs.js")),
  view: () => looking(import("./view.js")),
  compare: () => looking(import("./compare.js")),
  fork: () => looking(import("./fork.js")),
  fleet: () => looking(import("./fleet.js")),
};

/** A page about runs, with how it looks. */
async function looking(page) {
  await sheet("runs.css");
  return page;
}

const THEME = "acorn-theme";

function theme(wanted) {
  if (wanted) document.documentElement.dataset.theme = wanted;
  else delete document.documentElement.dataset.theme;
}

function isDark() {
  const wanted = document.documentElement.dataset.theme;
  return wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function header(top, { agent, fleet }, path) {
  const here = (is) => (is ? { "aria-current": "page" } : {});
  const turn = button("", () => {
    const wanted = isDark() ? "light" : "dark";
    theme(wanted);
    localStorage.setItem(THEME, wanted);
    look();
    document.dispatchEvent(new Event("theme"));
  }, { look: "bare" });
  const look = () => {
    turn.setAttribute("aria-label", isDark() ? "Light" : "Dark");
    fill(turn, icon(isDark() ? "sun" : "moon"));
  };
  look();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    look();
    document.dispatchEvent(new Event("theme"));
  });
  fill(top,
    link([el("img", { src: `${base}/static/acorn.svg`, alt: "", width: 24, height: 24 }), el("span", {}, agent?.name ?? "acorn")], agent ? "/" : "/runs/", { class: "brand" }),
    agent?.model && chip(agent.model, "mono model"),
    el("nav", { "aria-label": "Pages" }, agent && link("Play", "/", here(path === "/")), link("Runs", "/runs/", here(path.startsWith("/runs"))), fleet && link("Fleet", "/fleet", here(path === "/fleet"))),
    turn);
}

async function begin() {
  theme(localStorage.getItem(THEME));
  const main = document.getElementById("main");
  const path = location.pathname.slice(base.length) || "/";
  const isView = path.startsWith("/runs/") && path.length > "/runs/".length;
  const asked = ask("/api/agent");
  const told = asked.then((found) => header(document.getElementById("top"), found, path));
  if (isView) {  // which asks for its run at once, and does not wait for the agent
    const { viewPage } = await pages.view();
    return viewPage(main, decodeURIComponent(path.slice("/runs/".length)));
  }
  if (path === "/compare") return (await pages.compare()).comparePage(main);
  const found = await asked;
  await told;
  if (found.error) return fill(main, el("p", { class: "wait wrong" }, found.error));
  if (path.startsWith("/runs/")) return (await pages.runs()).runsPage(main, found);
  if (path === "/fleet") return (await pages.fleet()).fleetPage(main, found);
  if (!found.agent) return location.replace(`${base}${found.fleet ? "/fleet" : "/runs/"}`);
  if (path === "/fork") return (await pages.fork()).forkPage(main, found.agent);
  return (await pages.play()).playPage(main, found.agent);
}

begin();
