// Charts draws the last 15 minutes of each model with uPlot.
const columns = ["ttft50", "ttft99", "itl50", "itl99", "requests", "tokens", "refused", "failed", "hits", "predicted", "waiting"];
const kinds = [
  { title: "TTFT", series: [["p50", "ttft50", "--prefill"], ["p99", "ttft99", "--transfer", true]], text: seconds },
  { title: "ITL", series: [["p50", "itl50", "--prefill"], ["p99", "itl99", "--transfer", true]], text: seconds },
  { title: "Tokens a second", series: [["generated", "tokens", "--decode"]], text: plain },
  { title: "Requests a second", series: [["ended", "requests", "--prefill"], ["refused", "refused", "--queue", true], ["failed", "failed", "--bad", true]], text: plain },
  { title: "Prompt tokens cached", series: [["found", "hits", "--decode"], ["predicted", "predicted", "--transfer", true]], text: (v) => `${Math.round(v * 100)} %`, range: [0, 1] },
  { title: "Queue", series: [["waiting", "waiting", "--queue"]], text: plain },
];
const most = 180;

function seconds(v) { return v >= 1 ? `${+v.toFixed(2)} s` : `${+(v * 1000).toFixed(1)} ms`; }
function plain(v) { return v >= 10000 ? `${Math.round(v / 1000)} k` : `${+v.toFixed(1)}`; }

export class Charts {
  constructor() {
    this.drawn = [];
    this.rows = {};
    this.marks = [];
    const again = () => this.find();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    addEventListener("tandem-theme", again);
    addEventListener("resize", () => this.drawn.forEach((d) => d.plot.setSize({ width: d.box.clientWidth, height: 150 })));
  }

  async find() {
    for (const d of this.drawn) d.plot.destroy();
    this.drawn = [];
    const places = [...document.querySelectorAll("[data-charts]")];
    if (!places.length) return;
    const answer = await fetch("/console/points");
    if (!answer.ok) return;
    this.rows = await answer.json();
    for (const place of places) {
      place.replaceChildren();
      for (const kind of kinds) this.draw(place, place.dataset.charts, kind);
    }
    this.marked = undefined;
    await this.mark("");
  }

  // mark fetches the events if they have changed: each is a line on every chart, and says what it is under the pointer.
  async mark(revision) {
    if (!this.drawn.length || this.marked === revision) return;
    this.marked = revision;
    const answer = await fetch("/console/marks");
    if (!answer.ok) return;
    this.marks = await answer.json();
    for (const d of this.drawn) d.plot.redraw(false);
  }

  lines({ ctx, bbox, valToPos }, colour) {
    ctx.save();
    ctx.setLineDash([3, 3]);
    for (const { at, bad } of this.marks) {
      const x = valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(bad ? "--bad" : "--soft");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  draw(place, model, kind) {
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name).trim();
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.append(kind.title);
    const names = document.createElement("span");
    for (const [name, , hue, dashed] of kind.series) {
      const line = document.createElement("i");
      line.style.setProperty("--part", colour(hue));
      line.className = dashed ? "dashed" : "";
      names.append(line, name);
    }
    caption.append(names);
    const box = document.createElement("div");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${kind.title} of ${model} over the last 15 minutes; the table below has the figures`);
    figure.append(caption, box);
    place.append(figure);
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: box.clientWidth, height: 150, legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => kind.range ?? [0, Math.max(high * 1.15, kind.text === seconds ? 1e-3 : 1)] } },
      axes: [{ ...axis, space: 70, size: 30, incrs: [60, 120, 300, 600], values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toISOString().slice(11, 16)) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(kind.text) }],
      hooks: {
        drawClear: [(u) => this.lines(u, colour)],
        setCursor: [(u) => { box.title = this.marks.filter((m) => Math.abs(u.valToPos(m.at, "x") - u.cursor.left) < 6).map((m) => m.text).join("\n"); }],
      },
      series: [{}, ...kind.series.map(([name, , hue, dashed]) => ({ label: name, stroke: colour(hue), width: 2, dash: dashed ? [6, 4] : undefined, points: { show: false }, spanGaps: true }))],
    }, this.data(model, kind), box);
    this.drawn.push({ plot, box, model, kind });
  }

  data(model, kind) {
    const rows = this.rows[model] ?? [];
    return [rows.map((r) => r[0]), ...kind.series.map(([, column]) => rows.map((r) => r[1 + columns.indexOf(column)]))];
  }

  // add appends the newest points, which come every five seconds.
  add(points) {
    if (!points || !this.drawn.length) return;
    for (const [model, row] of Object.entries(points)) {
      const rows = (this.rows[model] ??= []);
      if (rows.length && rows[rows.length - 1][0] >= row[0]) continue;
      rows.push(row);
      if (rows.length > most) rows.shift();
    }
    for (const d of this.drawn) d.plot.setData(this.data(d.model, d.kind));
  }
}
