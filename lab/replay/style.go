package replay

// Style is the CSS that drawings need: colours that people of every sight can tell apart, for light and dark grounds.
// The page defines --ink, --faint, --rule, --ground and --bad.
const Style = `
:root { --c0: #0b6bb8; --c1: #d1521a; --c2: #16865a; --c3: #b04a94; --c4: #957000; --c5: #2389ad; --c6: #6b5bd2; --c7: #5d6670; }
@media (prefers-color-scheme: dark) { :root { --c0: #6db3f8; --c1: #ff9a66; --c2: #55cf9b; --c3: #ee9bd6; --c4: #e0bd4a; --c5: #6fd3f2; --c6: #b3a8ff; --c7: #b5bec7; } }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); }
svg.plot { display: block; width: 100%; height: auto; max-width: 34rem; }
.area { fill: none; stroke: var(--rule); } .grid { stroke: var(--rule); stroke-width: .7; }
.tick, .name, .limit text, .bar-name { font: 11.5px system-ui, sans-serif; fill: var(--faint); } .name, .bar-name { fill: var(--ink); }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; } .fill { fill: var(--c); opacity: .14; }
.dots { fill: none; stroke: var(--c); stroke-width: 3.2; stroke-linecap: round; opacity: .6; }
.mark { font: 13px sans-serif; fill: var(--c); text-anchor: middle; } .value { fill: var(--c); opacity: .55; } .whisker { fill: none; stroke: var(--ink); stroke-width: 1.4; }
.limit path { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none; }
.limit text { fill: var(--bad); paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
.legend { list-style: none; margin: .25rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; color: var(--ink); }
.legend svg { vertical-align: -1px; margin-right: .4rem; }
`
