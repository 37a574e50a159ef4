package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// fleet is compose.yaml, started under a project of its own.
type fleet struct {
	docker  *docker
	project string
	command []string // Compose with its project and files
	environ []string
	url     string // for clients
	client  *http.Client
	secrets string // folder of certificates and passwords, of a fleet with compose.secure.yaml; else empty

	door      string            // the service for clients
	gateways  []string          // services
	adminPort string            // of each gateway, for /workers
	admin     map[string]string // where that is published on this machine, by gateway
}

// composeFiles are compose.yaml, each compose.NAME.yaml of with, and the scenarios' overlays by name.
func composeFiles(d *docker, with []string, overlays ...string) []string {
	dir := filepath.Join(d.root, "deploy", "compose")
	args := []string{"-f", filepath.Join(dir, "compose.yaml")}
	for _, name := range with {
		args = append(args, "-f", filepath.Join(dir, "compose."+name+".yaml"))
	}
	for _, name := range overlays {
		args = append(args, "-f", filepath.Join(dir, "scenarios", name+".yaml"))
	}
	return args
}

// newFleet names a fleet; nothing runs before up.
func newFleet(d *docker, project string, i *images, with []string, overlays ...string) *fleet {
	command := append([]string{}, d.compose...)
	command = append(append(command, "-p", project), composeFiles(d, with, overlays...)...)
	f := &fleet{
		docker: d, project: project, command: command,
		// Unless a port is named the engine picks one: fleets run next to each other.
		environ: append(i.environ(), "COMPOSE_IGNORE_ORPHANS=1", "TANDEM_HTTP_PORT="+os.Getenv("TANDEM_HTTP_PORT"), "TANDEM_PROMETHEUS_PORT="),
		client:  &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
		door:    "gateway", gateways: []string{"gateway"}, adminPort: "8000", admin: map[string]string{},
	}
	if slices.Contains(with, "replicas") {
		f.door, f.gateways, f.adminPort = "balancer", gatewayIDs, "9000"
	}
	return f
}

// readyLimit bounds how long a fleet may take to serve.
const readyLimit = 60 * time.Second

// up starts everything and waits until every gateway is healthy with every worker and follows its KV events.
func (f *fleet) up(ctx context.Context) error {
	if f.secrets != "" {
		if err := f.secure(ctx); err != nil {
			return fmt.Errorf("etcd's users: %w", err)
		}
	}
	if _, err := f.compose(ctx, "up", "-d"); err != nil {
		return err
	}
	return f.until(ctx, readyLimit, "the fleet serves", func(ctx context.Context) error {
		if f.url == "" {
			address, err := f.address(ctx, f.door)
			if err != nil {
				return fmt.Errorf("%s has no port: %w", f.door, err)
			}
			f.url = "http://" + address
		}
		return f.whole(ctx)
	})
}

// whole returns what the fleet lacks to be healthy and publishing, according to every gateway.
func (f *fleet) whole(ctx context.Context) error {
	if err := f.get(ctx, f.url+"/health", nil); err != nil {
		return err
	}
	for _, gateway := range f.gateways {
		if err := f.sees(ctx, gateway); err != nil {
			return fmt.Errorf("%s: %w", gateway, err)
		}
	}
	if f.door == "balancer" {
		return balanced(ctx, f)
	}
	return nil
}

// sees returns what a gateway lacks to serve with every worker, follow its KV events, and have the others' bookings.
func (f *fleet) sees(ctx context.Context, gateway string) error {
	if err := f.ask(ctx, gateway, "/health", nil); err != nil {
		return err
	}
	all, err := f.workersOf(ctx, gateway)
	if err != nil {
		return err
	}
	for _, id := range workerIDs {
		w, ok := all[id]
		switch {
		case !ok:
			return fmt.Errorf("%s is not registered", id)
		case w.events == nil:
			return fmt.Errorf("the KV events of %s are not followed", id)
		case w.events.State != "live":
			return fmt.Errorf("the KV events of %s are %s", id, w.events.State)
		}
	}
	return f.shares(ctx, gateway)
}

// down removes the project's containers, networks and volumes.
func (f *fleet) down(ctx context.Context) error {
	// Compose stops services first and waits; nothing needs to shut down cleanly.
	_, killed := f.compose(ctx, "kill")
	_, err := f.compose(ctx, "down", "--volumes", "--timeout", "1")
	if err == nil {
		return nil
	}
	return errors.Join(killed, err)
}

// container returns the id of a service's container, running or not, found by Compose's labels: Compose itself takes a
// second to answer.
func (f *fleet) container(ctx context.Context, service string) (string, error) {
	const label = "label=com.docker.compose."
	id, err := f.docker.do(ctx, "ps", "-aq", "--no-trunc", "--filter", label+"project="+f.project, "--filter", label+"service="+service)
	if err == nil && id == "" {
		err = fmt.Errorf("service %s has no container", service)
	}
	return id, err
}

// address is where port 8000 of a service's container is published on this machine, as HOST:PORT.
func (f *fleet) address(ctx context.Context, service string) (string, error) {
	return f.port(ctx, service, "8000")
}

// port is where a port of a service's container is published on this machine, as HOST:PORT.
func (f *fleet) port(ctx context.Context, service, port string) (string, error) {
	id, err := f.container(ctx, service)
	if err != nil {
		return "", err
	}
	return f.docker.do(ctx, "port", id, port)
}

// act does something to a service's container: act(ctx, "decode-1", "pause").
func (f *fleet) act(ctx context.Context, service string, verb ...string) error {
	id, err := f.container(ctx, service)
	if err != nil {
		return err
	}
	_, err = f.docker.do(ctx, append(verb, id)...)
	return err
}

// action is what is done to a service of a fleet.
type action func(ctx context.Context, f *fleet, service string) error

// by is the action of one docker command.
func by(verb ...string) action {
	return func(ctx context.Context, f *fleet, service string) error { return f.act(ctx, service, verb...) }
}

// cut takes a service's container off the network, and join puts it back under its name.
func cut(ctx context.Context, f *fleet, service string) error {
	return f.act(ctx, service, "network", "disconnect", f.project+"_fleet")
}

func join(ctx context.Context, f *fleet, service string) error {
	return f.act(ctx, service, "network", "connect", "--alias", service, f.project+"_fleet")
}

// order runs `gateway workers` in the gateway's container: it takes changes from its own machine alone.
func (f *fleet) order(ctx context.Context, words ...string) error {
	id, err := f.container(ctx, "gateway")
	if err != nil {
		return err
	}
	_, err = f.docker.do(ctx, append([]string{"exec", id, "/gateway", "workers"}, words...)...)
	return err
}

// logs are the last lines of every container.
func (f *fleet) logs(ctx context.Context, lines int) string {
	out, err := f.docker.output(ctx, f.environ, append(f.command, "logs", "--no-color", "--tail", fmt.Sprint(lines))...)
	if err != nil {
		return err.Error()
	}
	return out
}

// workerIDs are compose.yaml's workers: services and ids alike.
var workerIDs = []string{"prefill-1", "prefill-2", "decode-1", "decode-2"}

// gatewayIDs are compose.replicas.yaml's gateways: services and hosts' names alike.
var gatewayIDs = []string{"gateway-1", "gateway-2", "gateway-3"}

// workerView is a worker in a gateway's status.
type workerView struct {
	ActiveBlocks  int    `json:"active_blocks"`
	CachedBlocks  int    `json:"cached_blocks"`
	PrefillTokens int    `json:"prefill_tokens"`
	Requests      int    `json:"requests"`
	Others        int    `json:"others_requests"` // of them, booked by other gateways
	State         string `json:"state"`
	Circuit       string `json:"circuit"`
	events        *eventsView
}

// eventsView is how far the gateway has followed a worker's KV events.
type eventsView struct {
	Worker string `json:"worker"`
	State  string `json:"state"`
	Seq    uint64 `json:"seq"`
	Gaps   uint64 `json:"gaps"`
}

// ask reads JSON from a gateway's operator endpoint.
func (f *fleet) ask(ctx context.Context, gateway, path string, v any) error {
	body, err := f.page(ctx, gateway, path)
	if err != nil || v == nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// page reads a page. The port may change at each start of the container.
func (f *fleet) page(ctx context.Context, gateway, path string) ([]byte, error) {
	if f.admin[gateway] == "" {
		address, err := f.port(ctx, gateway, f.adminPort)
		if err != nil {
			return nil, err
		}
		f.admin[gateway] = address
	}
	body, err := f.read(ctx, "http://"+f.admin[gateway]+path)
	if err != nil {
		delete(f.admin, gateway)
	}
	return body, err
}

// workers lists the first gateway's workers by id.
func (f *fleet) workers(ctx context.Context) (map[string]workerView, error) {
	return f.workersOf(ctx, f.gateways[0])
}

// workersOf lists one gateway's workers.
func (f *fleet) workersOf(ctx context.Context, gateway string) (map[string]workerView, error) {
	var report struct {
		Pools []struct {
			Workers []struct {
				ID string `json:"id"`
				workerView
			} `json:"workers"`
		} `json:"pools"`
		Events map[string][]eventsView `json:"kv_events"`
	}
	if err := f.ask(ctx, gateway, "/workers", &report); err != nil {
		return nil, err
	}
	all := map[string]workerView{}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			all[w.ID] = w.workerView
		}
	}
	for _, sources := range report.Events {
		for _, s := range sources {
			if w, ok := all[s.Worker]; ok {
				w.events = &s
				all[s.Worker] = w
			}
		}
	}
	return all, nil
}

// held returns what is still booked in a gateway or held in an engine; nil is nothing. lost allows KV on prefill
// workers, which only its lease ends.
func (f *fleet) held(ctx context.Context, lost bool) error {
	var held []error
	for _, gateway := range f.gateways {
		all, err := f.workersOf(ctx, gateway)
		if err != nil {
			return err
		}
		for _, id := range workerIDs {
			if w := all[id]; w.ActiveBlocks+w.PrefillTokens+w.Requests != 0 {
				held = append(held, fmt.Errorf("%s has booked on %s: %d requests, %d blocks, %d tokens to prefill", gateway, id, w.Requests,
					w.ActiveBlocks, w.PrefillTokens))
			}
		}
	}
	for _, id := range workerIDs {
		address, err := f.address(ctx, id)
		if err != nil {
			return err
		}
		var books struct {
			Running, Waiting, Transferring int
			Blocks                         struct{ Active int }
			Pinned                         []struct {
				Reason string
				Blocks int
			}
		}
		if err := f.get(ctx, "http://"+address+"/debug/books", &books); err != nil {
			held = append(held, fmt.Errorf("books of %s: %w", id, err))
			continue
		}
		if lost {
			for _, p := range books.Pinned {
				books.Blocks.Active = max(0, books.Blocks.Active-p.Blocks) // they may share some
			}
			books.Pinned = nil
		}
		if books.Running+books.Waiting+books.Transferring+books.Blocks.Active+len(books.Pinned) != 0 {
			held = append(held, fmt.Errorf("%s holds %+v", id, books))
		}
	}
	return errors.Join(held...)
}

// until waits for ok to return nil.
func (f *fleet) until(ctx context.Context, limit time.Duration, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // not the one that the limit itself caused
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %s: %w", limit, what, errors.Join(context.Cause(ctx), last))
		case <-tick.C:
		}
	}
}

// get reads JSON into v, which may be nil; a status other than 200 is an error.
func (f *fleet) get(ctx context.Context, url string, v any) error {
	body, err := f.read(ctx, url)
	if err != nil || v == nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// read returns the body at a URL.
func (f *fleet) read(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.200s", url, res.StatusCode, body)
	}
	return body, err
}

// compose runs Compose on the project.
func (f *fleet) compose(ctx context.Context, args ...string) (string, error) {
	return f.docker.output(ctx, f.environ, append(append([]string{}, f.command...), args...)...)
}
