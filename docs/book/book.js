"use strict";
// Search and the light-or-dark button. What is searched comes as a script, so that it works from a folder too.
(() => {
  const home = document.currentScript.dataset.home;
  const root = document.documentElement, box = document.getElementById("search"), found = document.getElementById("found");

  const stored = () => { try { return localStorage.getItem("shade"); } catch { return null; } };
  const shade = (name) => { root.style.colorScheme = name; try { localStorage.setItem("shade", name); } catch { /* not kept */ } };
  if (stored()) root.style.colorScheme = stored();
  document.getElementById("shade").onclick = () => {
    const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    shade(dark ? "light" : "dark");
  };

  // The contents begin where the reader is.
  const here = document.querySelector("nav [aria-current]"), list = here?.closest("nav");
  if (here) list.scrollTop = Math.max(0, here.offsetTop - list.clientHeight / 3);

  let loading = null;
  const load = () => loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = home + "search.js"; script.onload = done; script.onerror = failed;
    document.head.append(script);
  });

  // score is 0 where a word is missing. A heading weighs most, then the page's title, then the text.
  const score = (entry, words) => {
    const [, title, heading, text] = entry.lower ??= entry.map((s) => s.toLowerCase());
    let sum = 0;
    for (const word of words) {
      const inHeading = heading.includes(word), inTitle = title.includes(word);
      const times = text.split(word).length - 1;
      if (!inHeading && !inTitle && !times) return 0;
      sum += (inHeading ? 20 : 0) + (inTitle ? (heading ? 4 : 24) : 0) + Math.min(times, 6);
    }
    return sum + (words.length > 1 && text.includes(words.join(" ")) ? 12 : 0);
  };

  // marked appends a text to an element, with the words in it marked.
  const marked = (element, text, words) => {
    const escaped = words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    for (const [i, part] of text.split(new RegExp("(" + escaped.join("|") + ")", "i")).entries()) {
      if (i % 2) element.append(Object.assign(document.createElement("mark"), { textContent: part }));
      else element.append(part);
    }
    return element;
  };

  const row = ([url, title, heading, text], words) => {
    const link = document.createElement("a");
    link.href = home + url;
    link.append(marked(document.createElement("b"), heading ? title + " › " + heading : title, words));
    const first = Math.max(0, Math.min(...words.map((w) => text.toLowerCase().indexOf(w)).filter((i) => i >= 0)) - 60);
    const from = Number.isFinite(first) ? first : 0;
    link.append(marked(document.createElement("small"), (from ? "…" : "") + text.slice(from, from + 180) + "…", words));
    return link;
  };

  const search = async () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.hidden = words.length === 0;
    if (found.hidden) return;
    try { await load(); } catch { found.textContent = "search.js cannot be loaded"; return; }
    const hits = tandemBook.map((entry) => [score(entry, words), entry]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]);
    found.replaceChildren(...hits.slice(0, 20).map(([, entry]) => row(entry, words)));
    if (!hits.length) found.append(Object.assign(document.createElement("p"), { textContent: "Nothing has all of these words." }));
  };

  const move = (by) => {
    const links = [...found.querySelectorAll("a")], at = links.indexOf(document.activeElement) + by;
    (links[at] ?? (at < 0 ? box : links.at(-1)))?.focus();
  };
  box.oninput = search;
  box.onfocus = () => { load().catch(() => {}); search(); };
  document.onkeydown = (event) => {
    const inside = event.target === box || found.contains(event.target);
    if (event.key === "/" && !inside) box.focus();
    else if (!inside) return;
    else if (event.key === "Escape") { found.hidden = true; box.blur(); return; }
    else if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && event.target === box) found.querySelector("a")?.click();
    else return;
    event.preventDefault();
  };
  document.onclick = (event) => {
    if (!event.target.closest(".search") || event.target.closest("#found a")) found.hidden = true;
    if (event.target.closest("nav a")) document.getElementById("menu").checked = false;
  };
})();
