package operations

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// chromium is what -update writes the screenshots in docs with.
var chromium = flag.String("chromium", "", "a Chromium to look at the pages with; without one they are read over plain HTTP")

// browser is a page in a real browser. It notes what must not be.
type browser struct {
	f   *site
	ctx context.Context

	mu   sync.Mutex
	bad  []string // errors on its console, and requests to other hosts
	sent int      // requests
}

// open starts the browser.
func (f *site) open(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(*chromium), chromedp.Flag("no-sandbox", true),
		chromedp.Flag("hide-scrollbars", true))
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, leave := chromedp.NewContext(allocated)
	t.Cleanup(func() { leave(); end() })
	b := &browser{f: f, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, b.note))
	b.do(func(ctx context.Context, s *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, s, log.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	return b
}

// note looks at one event of the browser.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.sent++
		if !strings.HasPrefix(e.Request.URL, b.f.URL) && !strings.HasPrefix(e.Request.URL, "data:") &&
			!strings.HasPrefix(e.Request.URL, "about:") {
			b.bad = append(b.bad, "a request to "+e.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		b.bad = append(b.bad, "an exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.bad = append(b.bad, "a line on the console: "+string(e.Type))
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			b.bad = append(b.bad, string(e.Entry.Level)+": "+e.Entry.Text)
		}
	}
}

// do runs steps within a minute.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.f.T.Helper()
	require.NoError(b.f.T, chromedp.Do(b.ctx, steps...))
}

// look evaluates an expression in the page.
func look[T any](b *browser, expression string) T {
	b.f.T.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.f.T, err, "in %.80s", expression)
	return v
}

// until waits until a condition holds in the page. A page that gives way to another meanwhile, as at the sign-in, cannot
// be asked: the browser then answers with a server error, code -32000, and the next page is asked.
func (b *browser) until(what, condition string) {
	b.f.T.Helper()
	b.f.Eventually(what, func() bool {
		v, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](condition))
		var failed *cdproto.Error
		require.True(b.f.T, err == nil || errors.As(err, &failed) && failed.Code == -32000, "%v in %.80s", err, condition)
		return err == nil && v
	})
}

// as sets width and theme.
func (b *browser) as(width int64, theme string) {
	b.f.T.Helper()
	b.do(chromedp.EmulateViewport(width, 900), func(ctx context.Context, s *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, s, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
		return chromedp.Void{}, err
	})
}

// see opens a page and waits until it is live.
func (b *browser) see(path string) {
	b.f.T.Helper()
	b.do(chromedp.Navigate(b.f.URL + path))
	b.live()
}

// quick opens a page, which renders within 300 ms.
func (b *browser) quick(path string) {
	b.f.T.Helper()
	took := time.Hour.Seconds() * 1e3
	for try := 0; try < 8 && took > 300; try++ { // this machine may be busy with something else
		b.do(chromedp.Navigate(b.f.URL + path))
		took = min(took, look[float64](b,
			`(() => { const n = performance.getEntriesByType("navigation")[0]; return n.domContentLoadedEventEnd - n.startTime; })()`))
	}
	assert.True(b.f.T, took <= 300, "%s takes %.0f ms to render", path, took)
}

// live waits until the stream is open.
func (b *browser) live() {
	b.f.T.Helper()
	b.until("the page is live", `document.getElementById("link")?.dataset.state === "live"`)
}

// clean fails on what was noted.
func (b *browser) clean(where string) {
	b.f.T.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bad := range b.bad {
		b.f.T.Errorf("%s: %s", where, bad)
	}
	b.bad = nil
}

// audit lists what keeps a reader from a page: text without contrast (WCAG 2, AA), what has no name, a page wider than
// the window, an id that stands twice.
const audit = `(() => {
  const found = [];
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); if (c.startsWith("color(srgb")) return [...m.slice(0, 3).map((v) => v * 255), m[3] ?? 1]; return [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => {
    const layers = [];
    if (e instanceof SVGElement) { const rect = e.closest("g.node")?.querySelector("rect"); if (rect) layers.push(parse(getComputedStyle(rect).fill)); }
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) layers.push(c); if (c[3] === 1) break; }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !e.checkVisibility({ visibilityProperty: true }) || e.closest(".skip, dialog:not([open])")) continue;
    const s = getComputedStyle(e), back = ground(e), ink = over(parse(e instanceof SVGElement ? s.fill : s.color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    const size = parseFloat(s.fontSize), least = e.matches("text.mark") /* a figure */ || size >= 24 || size >= 18.66 && s.fontWeight >= 700 ? 3 : 4.5;
    if (ratio < least) found.push("contrast " + ratio.toFixed(2) + " of " + JSON.stringify(texts.currentNode.data.trim().slice(0, 30)) + " in " + e.tagName + "." + e.getAttribute("class"));
  }
  const name = (e) => e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") && document.getElementById(e.getAttribute("aria-labelledby"))) || e.labels?.[0]?.textContent || e.textContent.trim();
  for (const e of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, [role=img], [role=region], section, nav")) if (!name(e)) found.push("no name: " + e.outerHTML.slice(0, 90));
  for (const e of document.querySelectorAll("img:not([alt])")) found.push("no alternative: " + e.src);
  for (const e of document.querySelectorAll("th:not([scope])")) found.push("no scope: " + e.textContent);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push("twice: #" + id);
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window: " + document.documentElement.scrollWidth);
  for (const e of document.querySelectorAll(".scroll")) if (e.tabIndex !== 0) found.push("the keyboard cannot scroll " + e.getAttribute("aria-label"));
  return [...new Set(found)];
})()`

// In a browser pages are quick, readable and live, for the keyboard too. TestPages checks them without a script.
func TestBrowser(t *testing.T) {
	if *chromium == "" {
		return
	}
	for name, look := range map[string]func(*testing.T, *browser){
		"pages": lookAtPages, "killed worker": lookAtKilledWorker, "keyboard": lookByKeyboard, "hidden tab": lookAtHiddenTab,
		"many workers": lookAtManyWorkers,
		"alarm":        lookAtAlarm,
		"sign-in":      lookAtSignIn,
		"screenshots":  lookAtScreenshots,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			look(t, newFleet(t, name == "sign-in").open(t))
		})
	}
}

// What is wrong appears at the top of an open page, in both themes and at both widths, and the folded rest stays unfolded
// while its ages go on.
func lookAtAlarm(t *testing.T, b *browser) {
	f := b.f
	source := f.Gateway.Roster.From("test")
	ghost := func(id string, role pools.Role) pools.Worker {
		w := *f.Gateway.Roster.Snapshot("tandem-sim", role).Members[0].Worker
		w.ID = id
		return w
	}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.as(width, theme)
			b.see("/")
			b.until("nothing is wrong", `document.getElementById("alarm").textContent.trim() === "Healthy"`)
			source.Lose(ghost("ghost-1", pools.Prefill))
			source.Lose(ghost("ghost-2", pools.Decode))
			b.until("both are named", `document.getElementById("alarm").textContent.includes("ghost-2") && document.querySelector("#alarm details li")`+
				`?.textContent.includes("ghost-1") === true`)
			assert.True(t, look[bool](b, `document.querySelector("#alarm details").open = true`))
			age := `document.querySelector("#alarm details time").textContent`
			before := look[string](b, age)
			b.until("the age goes on", age+` !== "`+before+`"`)
			assert.True(t, look[bool](b, `document.querySelector("#alarm details").open`), "unfolded")
			for _, problem := range look[[]string](b, audit) {
				t.Errorf("alarm %s at %d: %s", theme, width, problem)
			}
			b.clean("alarm")
			source.Remove("ghost-1")
			source.Remove("ghost-2")
		}
	}
}

// In a browser every page renders within 300 ms in both themes and at both widths, readably, without an error, and with
// no request to another host.
func lookAtPages(t *testing.T, b *browser) {
	f := b.f
	stop := f.load(6)
	f.Eventually("requests flow", func() bool { return f.sent.Load() > 40 })
	pages := func() []string {
		_, list := f.get("/console/requests")
		all := regexp.MustCompile(`/console/requests/[^"]+`).FindAllString(list, 1)
		for _, p := range paths {
			all = append(all, p.path)
		}
		return all
	}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.as(width, theme)
			for _, path := range pages() {
				b.quick(path)
				if strings.HasPrefix(path, "/console/requests/") {
					path = "/console/requests/" // the id is another one each time
				}
				b.live()
				where := path + " " + theme
				for _, problem := range look[[]string](b, audit) {
					t.Errorf("%s at %d: %s", where, width, problem)
				}
				b.clean(where)
			}
		}
	}
	assert.GreaterOrEqual(t, b.sent, 100, "only N requests were looked at")
	assert.NoError(t, stop())
}

// A killed worker reddens on the open page within two seconds, dots move on their ways, and the page stays clean; its
// requests move.
func lookAtKilledWorker(t *testing.T, b *browser) {
	f := b.f
	stop := f.load(24)
	f.Eventually("requests flow", func() bool { return f.sent.Load() > 100 })
	b.as(1280, "light")
	b.see("/")
	for _, kind := range []string{"queue", "prefill", "transfer", "decode"} {
		b.until("a dot is in "+kind, `!!document.querySelector(".diagram.wide .flights circle.`+kind+`")`)
	}
	f.Workers["decode-2"].Kill()
	killed := time.Now()
	f.Eventually("the worker is red", func() bool {
		return look[string](b, `document.querySelector('.wide [data-node="decode-2"]').dataset.tone`) == "bad"
	})
	assert.LessOrEqual(t, time.Since(killed), 2*time.Second, "the worker turned red after")
	assert.NotEqual(t, "up", look[string](b, `document.querySelector('[data-live="w.tandem-sim.decode-2.word"]').textContent`),
		"its state")
	b.clean("the fleet")
	f.Eventually("a request that was moved is listed", func() bool {
		_, body := f.get("/console/requests?limit=1000")
		return strings.Contains(body, "resume") || strings.Contains(body, `<td class="n">2</td>`)
	})
	b.until("the figures are there",
		`"ttft50 itl50 hits".split(" ").every((name) => /\d/.test(document.querySelector('.figures [data-live="m.tandem-sim.' + name + '"]').textContent))`)
	shot(b, "console-fleet.png", 1280, 880, everywhere(".wide"))
	b.see("/console/now")
	b.until("the pointer finds the loss on a chart", `[...document.querySelectorAll(".charts .u-over")].some((over) => {
		const { left, top, width } = over.getBoundingClientRect();
		for (let x = 0; x < width; x += 3) {
			over.dispatchEvent(new MouseEvent("mousemove", { clientX: left + x, clientY: top + 20, bubbles: true }));
			if (over.closest("[role=img]").title.includes("decode-2")) return true;
		}
		return false;
	})`)
	b.do(chromedp.Click("#pause"))
	b.until("the page is paused", `document.getElementById("link-text").textContent === "paused at"`)
	b.do(chromedp.Click("#pause"))
	b.live()
	b.clean("the marks")
	require.NoError(t, stop(), "every request is answered")
}

// Pools of 128 workers are readable at both widths and in both themes, without a script too: the lost one comes first, the
// healthy ones are folded, and headings sort.
func lookAtManyWorkers(t *testing.T, b *browser) {
	f := b.f
	for i := range 128 {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			f.Put(pools.Worker{ID: fmt.Sprintf("%s-x%03d", role, i), Model: stack.SimModel, Role: role, Engine: "sim", BlockSize: 16,
				Address: fmt.Sprintf("http://10.0.0.%d:9000", 1+i/8), Transfer: "10.0.0.1:9001", ModelInput: "text", TotalKVBlocks: 1000})
		}
	}
	require.NoError(t, f.Gateway.Roster.Drain("decode-x099", true))
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.as(width, theme)
			for _, query := range []string{"", "?group=host&all=1", "?find=x09&sort=id", "?sort=speed"} {
				b.see("/" + query)
				for _, problem := range look[[]string](b, audit) {
					t.Errorf("%s at %d, %s: %s", query, width, theme, problem)
				}
				b.clean(query)
			}
		}
	}
	b.see("/")
	const first = `document.querySelectorAll("table.workers")[1].querySelector("tbody th").textContent`
	assert.Equal(t, "decode-x099", look[string](b, first), "the first of the decode workers")
	assert.Less(t, look[int](b, `document.querySelectorAll("table.workers tbody tr").length`), 60, "rows")
	b.do(chromedp.SendKeys("#find", "decode-x12\r"))
	b.until("one ten is left", `document.querySelectorAll("table.workers tbody tr").length === 8`)
	b.clean("a search")
}

// Of ten thousand requests the page lists the latest as quickly as of few, readably in both themes and at both widths; the
// filter and the columns work by the keyboard, and a paused list stays.
func TestBrowserOfManyRequests(t *testing.T) {
	if *chromium == "" {
		return
	}
	b := newFleet(t, false).open(t)
	f := b.f
	var group errgroup.Group
	for range 64 {
		group.Go(func() error {
			for range 10_000 / 64 {
				if _, err := f.Try(t.Context(), fleet.ChatPath, fmt.Sprintf(
					`{"model":%q,"max_tokens":1,"messages":[{"role":"user","content":"%d"}]}`, stack.SimModel, f.sent.Add(1)), nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	for range 4 {
		require.NoError(t, f.ask(t.Context(), "the-long-one"))
	}
	kept := 0
	f.Eventually("they are kept", func() bool {
		_, body := f.get("/console/requests")
		_, text, _ := strings.Cut(body, `<section aria-label="Requests"><h2>`)
		_, err := fmt.Sscanf(text, "%d of", &kept)
		return err == nil && kept >= 7000 // all of them have their costs on a slow machine
	})
	t.Logf("%d requests are kept", kept)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.as(width, theme)
			for _, path := range []string{"/console/requests", "/console/requests?sort=itl&outcome=ok", "/console/requests?limit=x", "/console/events?kind=worker"} {
				b.quick(path)
				b.live()
				for _, problem := range look[[]string](b, audit) {
					t.Errorf("%s at %d, %s: %s", path, width, theme, problem)
				}
				b.clean(path)
			}
		}
	}
	b.as(1280, "light")
	b.see("/console/requests?outcome=ok")
	b.do(chromedp.SendKeys("#class", "none\r"))
	b.until("the filter is applied", `location.search.includes("class=none") && document.querySelector("main h2")?.textContent.startsWith("0 of") === true`)
	b.see("/console/requests")
	b.do(chromedp.Click(`thead a[href*="sort=answer"]`))
	b.until("the longest is first", `document.querySelector("[aria-sort=descending]")?.textContent === "Answer" && document.querySelector("tbody a")?.textContent === "the-long-one"`)
	b.live()
	b.do(chromedp.KeyEvent("p"))
	b.until("the list is paused", `document.getElementById("link-text").textContent === "paused at"`)
	before := look[string](b, `document.querySelector("h2").textContent`)
	require.NoError(t, f.ask(t.Context(), ""))
	assert.Equal(t, before, look[string](b, `document.querySelector("h2").textContent`), "a paused list changes")
	b.clean("the list")
}

// The keyboard opens pages, requests and the search; the waterfall is drawn.
func lookByKeyboard(t *testing.T, b *browser) {
	f := b.f
	for range 12 {
		require.NoError(t, f.ask(t.Context(), "req-7f3a"))
	}
	b.as(1280, "light")
	b.see("/")
	at := func(path string) {
		t.Helper()
		f.Eventually("the keyboard leads to "+path, func() bool {
			return strings.HasPrefix(look[string](b, "location.pathname"), path) && look[string](b, "document.readyState") == "complete"
		})
		b.live()
	}
	b.do(chromedp.KeyEvent("3"))
	at("/console/requests")
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"))
	assert.Equal(t, "A", look[string](b, "document.activeElement.closest('tr') ? document.activeElement.tagName : ''"),
		"j focuses X, want a request")
	b.do(chromedp.KeyEvent("\r"))
	at("/console/requests/")
	if bars := look[int](b, `[...document.querySelectorAll(".waterfall .part")].filter((e) => e.getBoundingClientRect().width > 0).length`); bars < 3 {
		t.Errorf("the waterfall has %d bars", bars)
	}
	shot(b, "console-request.png", 1280, 900, "true")
	b.do(chromedp.KeyEvent("/"))
	assert.Equal(t, "id", look[string](b, "document.activeElement.id"), "/ focuses")
	b.do(chromedp.Navigate(f.URL+"/"), chromedp.KeyEvent("t"))
	assert.Equal(t, "dark", look[string](b, "document.documentElement.dataset.theme"), "t makes the theme")
	b.do(chromedp.KeyEvent("?"))
	assert.True(t, look[bool](b, `document.getElementById("keys").open`), "? does not show the keys")
	b.clean("the keyboard")
}

// A hidden tab holds no connection, and one that is seen again is live.
func lookAtHiddenTab(t *testing.T, b *browser) {
	b.as(1280, "light")
	b.see("/console/now")
	hide := func(hidden string) {
		look[bool](b, `Object.defineProperty(document, "hidden", { value: `+hidden+`, configurable: true }) && document.dispatchEvent(new Event("visibilitychange"))`)
	}
	hide("true")
	b.until("the page shows its time",
		`document.getElementById("link").dataset.state === "still" && document.getElementById("link-text").textContent === "as of"`)
	b.until("the stream is closed",
		`performance.getEntriesByType("resource").some((e) => e.name.endsWith("/console/stream") && e.responseEnd > 0)`)
	hide("false")
	b.live()
	b.clean("a hidden tab")
}

// With an operator's key the browser signs in once, and out again.
func lookAtSignIn(t *testing.T, b *browser) {
	b.as(390, "light")
	b.do(chromedp.Navigate(b.f.URL + "/"))
	for _, problem := range look[[]string](b, audit) {
		t.Errorf("sign-in: %s", problem)
	}
	typeKey := func(key string) { b.do(chromedp.SendKeys("#key", key), chromedp.Click("button[type=submit]")) }
	typeKey("op-wrong-0123456789")
	b.until("the key is refused", `!!document.querySelector(".wrong")`)
	b.mu.Lock()
	b.bad = slices.DeleteFunc(b.bad, func(s string) bool { return strings.Contains(s, "401") }) // which the browser notes
	b.mu.Unlock()
	typeKey(operatorsKey)
	b.until("the fleet is there", `!!document.querySelector(".diagram")`)
	b.live()
	assert.Empty(t, look[string](b, "document.cookie"), "a script can read the cookie")
	b.clean("signed in")
	b.do(chromedp.Click("footer button"))
	b.until("the key is asked for again", `!!document.getElementById("key")`)
}

// Screenshots for the documents: a page under load at both widths.
func lookAtScreenshots(t *testing.T, b *browser) {
	if !*fleet.Update {
		return
	}
	f := b.f
	stop := f.load(20)
	<-time.After(2 * time.Minute) // the charts have something to show: points of five seconds each
	b.as(1280, "dark")
	b.see("/console/now")
	b.until("the charts are drawn", `document.querySelectorAll(".charts canvas").length === 6`)
	shot(b, "console-now.png", 1280, 900, `/\d/.test(document.querySelector('[data-live="m.tandem-sim.ttft50"]').textContent)`)
	b.as(1280, "light")
	b.see("/console/cache")
	shot(b, "console-cache.png", 1280, 560, "true")
	b.as(390, "light")
	b.see("/")
	shot(b, "console-narrow.png", 390, 844, everywhere(".narrow"))
	assert.NoError(t, stop())
}

// everywhere is the condition that dots are in every place of a picture, and that its figures are known.
func everywhere(picture string) string {
	return `"queue prefill transfer decode".split(" ").every((kind) => document.querySelector("` + picture +
		` .flights circle." + kind)) && /\d/.test(document.querySelector('.figures [data-live="m.tandem-sim.ttft50"]').textContent)`
}

// shot writes a screenshot of the window, where that is wanted, in which a condition holds: before it is taken and after.
func shot(b *browser, name string, width, height int64, condition string) {
	b.f.T.Helper()
	if !*fleet.Update {
		return
	}
	b.do(chromedp.EmulateViewport(width, height))
	var picture []byte
	b.f.Eventually(name+" shows what it should", func() (ok bool) {
		b.until("there is something to see on "+name, condition)
		var err error
		if picture, err = chromedp.Run(b.ctx, chromedp.CaptureScreenshot()); err != nil {
			b.f.T.Fatal(err)
		}
		return look[bool](b, condition)
	})
	assert.LessOrEqual(b.f.T, len(picture), 150_000, "%s bytes", name)
	require.NoError(b.f.T, os.WriteFile(filepath.Join("..", "..", "..", "..", "docs", name), picture, 0o644))
}
