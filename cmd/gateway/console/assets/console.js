// The page's own script: it puts the events of one stream into the page that the server has rendered.
import { Flights } from "/static/flights.js";
import { Charts } from "/static/charts.js";
import { keys } from "/static/keys.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const linkText = document.getElementById("link-text");
const tab = document.body.dataset.tab;
const flights = new Flights();
const charts = new Charts();
const single = location.pathname.startsWith("/console/requests/") || new URLSearchParams(location.search).has("id");

let places; // by name: the elements that show a text
let revision = document.body.dataset.revision; // of what the page is made of
let fetched = 0;

function find() {
  places = new Map();
  const note = (name, put) => {
    if (!places.has(name)) places.set(name, []);
    places.get(name).push(put);
  };
  for (const e of document.querySelectorAll("[data-live]")) note(e.dataset.live, (text) => { e.textContent = text; });
  for (const e of document.querySelectorAll("[data-live-html]")) note(e.dataset.liveHtml, (html) => {
    const unfolded = e.querySelector("details")?.open; // what the server has escaped
    e.innerHTML = html;
    if (unfolded) e.querySelector("details")?.setAttribute("open", "");
    find();
  });
  for (const e of document.querySelectorAll("[data-width]")) note(e.dataset.width, (text) => e.setAttribute("width", text));
  for (const e of document.querySelectorAll("[data-tone-live]")) note(e.dataset.toneLive, (text) => { e.dataset.tone = text; });
  flights.find();
  charts.find();
}

// refresh fetches the page again, because it is made of other things than before.
async function refresh() {
  const wait = { requests: 2000, events: 2000, cache: 3000 }[tab] ?? 0;
  if (Date.now() - fetched < wait || document.hidden) return;
  fetched = Date.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.status === 401) location.reload();
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const held = document.activeElement;
  const at = held && main.contains(held) ? held.getAttribute("href") || held.id : "";
  const typed = [...main.querySelectorAll("input[id], select[id]")].map((e) => [e.id, e.value]);
  const scrolled = [...main.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
  main.replaceChildren(...page.getElementById("main").childNodes);
  [...main.querySelectorAll(".scroll")].forEach((e, i) => { e.scrollLeft = scrolled[i] ?? 0; });
  for (const [id, value] of typed) if (document.getElementById(id)) document.getElementById(id).value = value;
  if (at) [...main.querySelectorAll("a, [id]")].find((e) => e.getAttribute("href") === at || e.id === at)?.focus({ preventScroll: true });
  revision = page.body.dataset.revision;
  find();
}

function show(state, text) {
  link.dataset.state = state;
  linkText.textContent = text;
}

let stream; // none while the page is hidden: a browser has six connections to a host, and other tabs want one too

function open() {
  stream = new EventSource("/console/stream");
  stream.onopen = () => show("live", "live");
  stream.onerror = () => show("lost", stream.readyState === EventSource.CLOSED ? "no longer live" : "reconnecting");
  stream.onmessage = async ({ data }) => {
    const event = JSON.parse(data);
    for (const [name, text] of Object.entries(event.live ?? {})) for (const put of places.get(name) ?? []) put(text);
    flights.show(event.flights ?? []);
    charts.add(event.points);
    charts.mark(event.revision.events);
    const now = event.revision[tab];
    if (now === undefined || single) return;
    if (now !== revision) await refresh();
  };
}

function close() {
  stream?.close();
  stream = undefined;
}

const hold = document.getElementById("pause"); // a paused page stays as it is
hold.addEventListener("click", () => {
  hold.setAttribute("aria-pressed", hold.getAttribute("aria-pressed") !== "true");
  go();
});

function go() {
  close();
  if (document.hidden || hold.getAttribute("aria-pressed") === "true") {
    show("still", document.hidden ? "as of" : "paused at");
    return;
  }
  open();
  charts.find(); // with the points that came meanwhile
}

document.addEventListener("visibilitychange", go);
addEventListener("beforeunload", close);
if (!document.hidden) open();
find();
keys();
