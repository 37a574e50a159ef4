package settings

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// RemoteIndex is the index elsewhere that the gateway asks what workers hold.
type RemoteIndex struct {
	URLs      []string      `setting:"remote-index-url"`
	TokenFile string        `setting:"remote-index-token-file"`
	Timeout   time.Duration `setting:"remote-index-timeout"`
}

// RemoteIndexGroup is the table that fills [RemoteIndex].
func RemoteIndexGroup() Group {
	return Group{Title: "Remote index", Settings: []Setting{
		{
			Name: "remote-index-url", Kind: List, Default: "", Validate: indexURLs,
			Help: "A `gateway index` that is asked what workers hold of each prompt, as http://HOST:PORT; several siblings in the order in which they " +
				"are tried. The gateway registers its workers there. It then follows no KV events itself unless router-kv-events is given too; " +
				"while no answer comes it uses those, or predicts. Costs each request a look-up's time, and spares each gateway an index of its own.",
		},
		{
			Name: "remote-index-token-file", Kind: String, Default: "",
			Help: "File with the token that the remote index asks for: its first line that is neither blank nor begins with #. The index's own token-file will do. " +
				"It is read again on SIGHUP.",
		},
		{
			Name: "remote-index-timeout", Kind: Duration, Default: "20ms", Min: "100us", Max: "10s",
			Help: "How long a look-up in the remote index may take before the request is routed without it. A look-up of 256 blocks among 1,000 workers takes " +
				"about 0.2ms on an idle machine, some milliseconds on a busy one. Too short guesses where an answer was on its way, which may cost a prefill; " +
				"while an index hangs, three requests wait as long before its circuit opens.",
		},
	}}
}

// indexURLs accepts base URLs that no password is in, none of them twice.
func indexURLs(value any) error {
	seen := map[string]bool{}
	for _, text := range value.([]string) {
		u, err := url.Parse(text)
		shown := quote(text[strings.LastIndex(text, "@")+1:])
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
			return fmt.Errorf("%s is not a URL, as http://HOST:PORT", shown)
		case u.User != nil:
			return errors.New("a URL has no password in it: remote-index-token-file has the token")
		case seen[u.Host]:
			return fmt.Errorf("%s is there twice", shown)
		}
		seen[u.Host] = true
	}
	return nil
}
