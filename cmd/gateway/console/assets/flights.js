// Flights draws requests on their way through the picture of the fleet, a second behind.
const still = matchMedia("(prefers-reduced-motion: reduce)");
const shape = "http://www.w3.org/2000/svg";
const lag = 1000; // milliseconds that the picture is behind, so that what a dot does next is known
const hop = 420; // milliseconds that a dot takes from one place to the next, unless it is known better
const least = 140; // and at the least, to be seen

export class Flights {
  constructor() {
    this.pictures = [];
    this.dots = new Map(); // by request
    this.frame = 0;
  }

  // find looks for the pictures of the page.
  find() {
    this.pictures = [...document.querySelectorAll(".diagram")];
    for (const dot of this.dots.values()) dot.circle.remove();
    this.dots.clear();
  }

  show(flights) {
    if (still.matches || document.hidden || !this.pictures.length) return;
    const named = new Set();
    for (const flight of flights) {
      named.add(flight.name);
      let dot = this.dots.get(flight.name);
      if (!dot) {
        const picture = this.pictures.find((p) => p.checkVisibility() && p.closest("section").dataset.model === flight.model);
        if (!picture) continue;
        dot = { picture, circle: document.createElementNS(shape, "circle"), seen: 0, path: [{ node: "client", at: 0 }], lane: Math.random(), narrow: picture.classList.contains("narrow"), began: performance.now() + lag - flight.ago, free: 0 };
        dot.circle.setAttribute("r", 5);
        this.dots.set(flight.name, dot);
      }
      const ahead = dot.seen - dot.path.length + 1; // hops that are over
      flight.way.slice(ahead, dot.seen).forEach((e, i) => { if (i > 0 || performance.now() < dot.began + e.at) dot.path[i + 1].took = e.took; });
      dot.path.push(...flight.way.slice(dot.seen));
      dot.seen = flight.way.length;
      dot.over = flight.over;
      dot.bad = flight.bad;
    }
    for (const [name, dot] of this.dots) if (!named.has(name)) dot.over = true;
    if (!this.frame && this.dots.size) this.frame = requestAnimationFrame((now) => this.move(now));
  }

  // place is where a dot is at a node, or, if it leaves, where it sets out.
  place(dot, name, leaves) {
    const node = dot.picture.querySelector(`[data-node="${CSS.escape(name)}"]`);
    const box = node?.querySelector("rect")?.getBBox();
    if (!box) return null;
    const middle = box.y + box.height / 2;
    if (node.classList.contains("worker")) return { x: box.x + box.width * (0.3 + 0.4 * dot.lane), y: box.y + box.height - 22, kind: node.dataset.role };
    if (name === "client") return { x: dot.narrow ? box.x : box.x + box.width, y: middle, kind: name };
    if (!leaves) return { x: dot.narrow ? box.x + box.width : box.x, y: middle, kind: name };
    return { x: dot.narrow ? box.x + box.width / 2 : box.x + box.width, y: dot.narrow ? box.y + box.height : middle, kind: name };
  }

  // lasts is how long the dot's next hop takes: as long as the KV did, or until the hop behind it is due.
  lasts(dot) {
    const [, next, after] = dot.path;
    if (next.took) return Math.max(least, next.took);
    return after ? Math.min(hop, Math.max(least, after.at - next.at)) : hop;
  }

  move(now) {
    for (const [name, dot] of this.dots) {
      const next = dot.path[1];
      const sets = next ? Math.max(dot.began + next.at, dot.free) : Infinity; // out for the next place
      if (next && dot.path[0].node === "client" && now < sets) continue; // it has not arrived yet
      const share = next ? Math.min(1, Math.max(0, (now - sets) / this.lasts(dot))) : 0;
      const from = this.place(dot, dot.path[0].node, !!next);
      const to = next ? this.place(dot, next.node, false) : from;
      if (!from || !to || (!next && dot.over)) {
        dot.circle.remove();
        this.dots.delete(name);
        continue;
      }
      const eased = share * share * (3 - 2 * share);
      const moves = share > 0;
      if (!dot.circle.isConnected) dot.picture.querySelector(".flights").append(dot.circle);
      dot.circle.setAttribute("cx", from.x + (to.x - from.x) * eased);
      dot.circle.setAttribute("cy", from.y + (to.y - from.y) * eased);
      dot.circle.setAttribute("class", dot.bad && dot.path.length < 3 && moves ? "bad" : !moves || to.kind === "client" ? from.kind : from.kind === "prefill" && to.kind === "decode" ? "transfer" : to.kind);
      if (share === 1) {
        dot.path.shift();
        dot.free = now;
      }
    }
    this.frame = this.dots.size ? requestAnimationFrame((next) => this.move(next)) : 0;
  }
}
