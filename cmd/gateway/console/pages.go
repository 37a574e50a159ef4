package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
)

var _ edge.Console = (*Console)(nil)

//go:embed assets templates
var files embed.FS

// templates are parsed once: a mistake in one fails every test.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"short": short, "percent": percent, "count": count, "duration": func(d time.Duration) string { return short(d.Seconds()) },
	"plural": plural,
}).ParseFS(files, "templates/*.html"))

// assets are the static files, with their ETags.
var assets = func() map[string]edge.Page {
	all := map[string]edge.Page{}
	entries, err := fs.ReadDir(files, "assets")
	for _, entry := range entries {
		var body []byte
		if body, err = files.ReadFile("assets/" + entry.Name()); err != nil {
			break
		}
		h := fnv.New64a()
		h.Write(body)
		kind := map[string]string{
			".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
			".txt": "text/plain; charset=utf-8",
		}[path.Ext(entry.Name())]
		all[entry.Name()] = edge.Page{Status: http.StatusOK, ContentType: kind, Body: body, Tag: fmt.Sprintf(`"%x"`, h.Sum64())}
	}
	if err != nil {
		panic(err) // embedded files can be read
	}
	return all
}()

type tab struct {
	Name, Path, Title, Key string
	every                  time.Duration // how long all viewers share a rendering
	// data returns the page's data and revision: see [message.Revision].
	data func(c *Console, q url.Values) (data any, revision string)
}

// tabs in the order of the navigation.
var tabs []*tab

func init() {
	tabs = []*tab{
		{"fleet", "/", "Fleet", "1", tickEvery, fleetData("fleet")},
		{"now", "/console/now", "Now", "2", tickEvery, (*Console).nowData},
		{"requests", "/console/requests", "Requests", "3", 2 * time.Second, (*Console).requestsData},
		{"events", "/console/events", "Events", "4", 2 * time.Second, (*Console).eventsData},
		{"cache", "/console/cache", "Cache", "5", 3 * time.Second, (*Console).cacheData},
		{"queue", "/console/queue", "Queue", "6", tickEvery, fleetData("queue")},
		{"settings", "/console/settings", "Settings", "7", pointEvery, (*Console).settingsData},
	}
}

// frameData is the data of the frame around a page.
type frameData struct {
	Tab      *tab
	Tabs     []*tab
	Title    string
	Version  string
	Gateway  string // the answering one's name in its group
	Time     string
	Revision string
	Keys     bool // viewers can sign out
	Alarm    template.HTML
	Data     any
}

// rendering is a rendered page, shared by all viewers until it expires.
type rendering struct {
	at   time.Time
	body []byte
}

const html = "text/html; charset=utf-8"

// Page implements [edge.Console].
func (c *Console) Page(path, query string) edge.Page {
	if name, ok := strings.CutPrefix(path, "/static/"); ok {
		if p, ok := assets[name]; ok {
			return p
		}
		return c.missing("There is no such file.")
	}
	q, _ := url.ParseQuery(query) // an unreadable query counts as empty
	for _, t := range tabs {
		if t.Path == path {
			return c.tabPage(t, q)
		}
	}
	switch name, ok := strings.CutPrefix(path, "/console/requests/"); {
	case path == "/console/points":
		return c.points()
	case path == "/console/marks":
		return c.marks()
	case ok:
		return c.requestPage(name)
	}
	return c.missing("There is no such page.")
}

// tabPage renders a page, or returns the latest rendering.
func (c *Console) tabPage(t *tab, q url.Values) edge.Page {
	if name := q.Get("id"); t.Name == "requests" && name != "" {
		return c.requestPage(name)
	}
	key := t.Name + "?" + q.Encode()
	now := time.Now()
	c.mu.Lock()
	kept := c.pages[key]
	c.mu.Unlock()
	if kept == nil || now.Sub(kept.at) >= t.every {
		data, revision := t.data(c, q)
		kept = &rendering{now, c.render("page-"+t.Name, frameData{Tab: t, Title: t.Title, Revision: revision}, data)}
		c.mu.Lock()
		if len(c.pages) >= maxViewers {
			clear(c.pages)
		}
		c.pages[key] = kept
		c.mu.Unlock()
	}
	return edge.Page{Status: http.StatusOK, ContentType: html, Body: kept.body}
}

// render executes a template within a frame.
func (c *Console) render(name string, frame frameData, data any) []byte {
	var main, whole bytes.Buffer
	err := templates.ExecuteTemplate(&main, name, data)
	if err == nil {
		frame.Tabs, frame.Version, frame.Time, frame.Keys = tabs, c.src.Version, date(time.Now(), clock), c.src.Keys
		if c.src.Name != nil {
			frame.Gateway = c.src.Name()
		}
		frame.Alarm = c.alarm().html()
		frame.Data = template.HTML(main.Bytes()) // escaped by the template above
		err = templates.ExecuteTemplate(&whole, "frame", frame)
	}
	if err != nil {
		panic(err) // a template uses a missing field: the edge answers 500 and logs it
	}
	return whole.Bytes()
}

func (c *Console) missing(text string) edge.Page {
	return edge.Page{
		Status: http.StatusNotFound, ContentType: html,
		Body: c.render("page-missing", frameData{Tab: &tab{}, Title: "Not found"}, text),
	}
}

// SignIn implements [edge.Console].
func (c *Console) SignIn(wrong bool) edge.Page {
	var b bytes.Buffer
	_ = templates.ExecuteTemplate(&b, "signin", wrong) // into memory
	return edge.Page{Status: http.StatusUnauthorized, ContentType: html, Body: b.Bytes()}
}

// fleetData returns the present fleet with its revision for a page.
func fleetData(page string) func(c *Console, _ url.Values) (any, string) {
	return func(c *Console, q url.Values) (any, string) {
		s := c.look(time.Now(), false)
		s.View = viewOf(q)
		return s, s.revisions()[page]
	}
}

// settingsData returns the settings in force: those that were set, then the others by group. The group's differences come
// first. A page without a recent answer of the other gateways waits for theirs.
func (c *Console) settingsData(q url.Values) (any, string) {
	type group struct {
		Name string
		Rows []Setting
	}
	groups, set, find := []group{{Name: "Set"}}, 0, strings.ToLower(strings.TrimSpace(q.Get("find")))
	for _, s := range c.src.Settings {
		at := 0
		if s.Source != "default" {
			set++
		} else if at = slices.IndexFunc(groups, func(g group) bool { return g.Name == s.Group }); at < 0 {
			at = len(groups)
			groups = append(groups, group{Name: s.Group})
		}
		if strings.Contains(strings.ToLower(s.Name+"\n"+s.Value+"\n"+s.Help), find) {
			groups[at].Rows = append(groups[at].Rows, s)
		}
	}
	c.mu.Lock()
	recent := time.Since(c.answered) < freshFor
	c.mu.Unlock()
	if !recent {
		c.refresh(context.Background())
	}
	gateways, differences, silent := c.differences(time.Now())
	return struct {
		Groups      []group
		Set, All    int
		Began, Find string
		Gateways    []string
		Differences []difference
		Silent      []string
	}{
		slices.DeleteFunc(groups, func(g group) bool { return len(g.Rows) == 0 }), set, len(c.src.Settings),
		date(c.began, "2006-01-02 15:04:05 UTC"), q.Get("find"), gateways, differences, silent,
	}, ""
}

// points returns the charts' data.
func (c *Console) points() edge.Page {
	r := c.recorder
	all := map[string][][]*float64{}
	r.mu.Lock()
	for name, m := range r.models {
		rows := make([][]*float64, 0, len(m.points))
		for i := range m.points {
			rows = append(rows, m.points[i].values())
		}
		all[name] = rows
	}
	r.mu.Unlock()
	b, err := json.Marshal(all)
	if err != nil {
		return c.missing("The points cannot be encoded.")
	}
	return edge.Page{Status: http.StatusOK, ContentType: "application/json", Body: b}
}
