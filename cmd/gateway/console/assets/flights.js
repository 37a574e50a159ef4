// Flights draws requests on their way through the picture of the fleet, a second behind.
const still = matchMedia("(prefers-reduced-motion: reduce)");
const shape = "http://www.w3.org/2000/svg";
const hop = 420; // milliseconds that a dot takes from one place to the next

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
        dot = { picture, circle: document.createElementNS(shape, "circle"), seen: 0, path: ["client"], lane: Math.random(), narrow: picture.classList.contains("narrow"), began: performance.now() + Math.max(0, 1000 - flight.ago) };
        dot.circle.setAttribute("r", 5);
        this.dots.set(flight.name, dot);
      }
      dot.path.push(...flight.way.slice(dot.seen).map((e) => e.node));
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

  move(now) {
    for (const [name, dot] of this.dots) {
      if (now < dot.began) continue; // it arrived later than others
      const share = Math.min(1, (now - dot.began) / hop);
      const from = this.place(dot, dot.path[0], dot.path.length > 1);
      const to = dot.path.length > 1 ? this.place(dot, dot.path[1], false) : from;
      if (!from || !to || (dot.path.length === 1 && dot.over && share === 1)) {
        dot.circle.remove();
        this.dots.delete(name);
        continue;
      }
      const eased = share * share * (3 - 2 * share);
      if (!dot.circle.isConnected) dot.picture.querySelector(".flights").append(dot.circle);
      dot.circle.setAttribute("cx", from.x + (to.x - from.x) * eased);
      dot.circle.setAttribute("cy", from.y + (to.y - from.y) * eased);
      dot.circle.setAttribute("class", dot.bad && dot.path.length < 3 ? "bad" : from.kind === "prefill" && to.kind === "decode" && share < 1 ? "transfer" : to.kind);
      if (share === 1 && dot.path.length > 1) {
        dot.path.shift();
        dot.began = now;
      }
    }
    this.frame = this.dots.size ? requestAnimationFrame((next) => this.move(next)) : 0;
  }
}
