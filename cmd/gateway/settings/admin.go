package settings

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Admin is who may ask what: keys, and where administration is reached.
type Admin struct {
	APIKeyFile   string `setting:"api-key-file"`
	AdminKeyFile string `setting:"admin-key-file"`
	Address      string `setting:"admin-address"` // empty: the clients'
	ClientHints  string `setting:"client-hints"`
}

// AdminGroup is the table that fills [Admin].
func AdminGroup() Group {
	return Group{Title: "Access", Settings: []Setting{
		{
			Name: "api-key-file", Kind: String, Default: "",
			Help: "File of the keys that clients need for /v1, one a line; blank lines and lines that begin with # do not count. " +
				"A key is 8 to 1024 visible ASCII bytes, sent as Authorization: Bearer KEY. SIGHUP reads the file again, so that a key " +
				"is replaced by adding the new one, then removing the old. Empty asks for no key: whoever reaches the port is served.",
		},
		{
			Name: "admin-key-file", Kind: String, Default: "",
			Help: "File of the keys that /metrics, /workers and the POSTs below it need, of the same form. A client's key opens none of them; " +
				"an operator's key opens the models too, with every hint that client-hints keeps from clients. Empty: everybody may look, and changes are taken from this machine or on admin-address only.",
		},
		{
			Name: "admin-address", Kind: String, Default: "", Validate: hostAndPort,
			Help: "HOST:PORT for /metrics, /workers and the POSTs below it, which the clients' address then does not have; " +
				"/health and /live are on both. Without an admin-key-file, whoever reaches it may cordon workers: keep it on a private network. " +
				"Port 0 picks a free one and prints it. Empty has everything on http-port.",
		},
		{
			Name: "client-hints", Kind: String, Default: "auto", Validate: clientHints,
			Help: "Which hints of a client's request count, in its head and in its body. none: priorities and the expected length are ignored, and " +
				"named in the answer's X-Tandem-Ignored-Hints; pins, taints, router_config_override, query_instance_id and the extra field " +
				"routing get 403. priority<=N: the same, and priorities count up to N. all: every hint counts, so that any client may go before " +
				"all others, choose workers and see what they have cached. auto is none with an api-key-file and all without. An operator's key " +
				"may use every hint.",
		},
	}}
}

// clientHints accepts what edge.ParseHints does.
func clientHints(value any) error {
	text := value.(string)
	if bound, ok := strings.CutPrefix(text, "priority<="); ok {
		if _, err := strconv.ParseUint(bound, 10, 31); err == nil {
			return nil
		}
	}
	if slices.Contains([]string{"auto", "none", "all"}, text) {
		return nil
	}
	return fmt.Errorf("%s is none of auto, none, priority<=N with N from 0 to 2147483647, and all", quote(text))
}

// hostAndPort accepts HOST:PORT, with an IPv6 address in brackets and an empty
// host for every address; or nothing.
func hostAndPort(value any) error {
	text := value.(string)
	if text == "" {
		return nil
	}
	name, port, err := net.SplitHostPort(text)
	if err == nil && name != "" {
		err = host(name)
	}
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s is not HOST:PORT", quote(text))
	}
	return nil
}
