package settings

import (
	"fmt"
	"net"
	"strconv"
)

// Admin is who may ask what: keys, and where administration is reached.
type Admin struct {
	APIKeyFile   string `setting:"api-key-file"`
	AdminKeyFile string `setting:"admin-key-file"`
	Address      string `setting:"admin-address"` // empty: the clients'
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
			Help: "File of the keys that /metrics, /workers and the POSTs below it need, of the same form. A client's key opens none of them, " +
				"nor an operator's key the models. Empty: everybody may look, and changes are taken from this machine or on admin-address only.",
		},
		{
			Name: "admin-address", Kind: String, Default: "", Validate: hostAndPort,
			Help: "HOST:PORT for /metrics, /workers and the POSTs below it, which the clients' address then does not have; " +
				"/health and /live are on both. Without an admin-key-file, whoever reaches it may cordon workers: keep it on a private network. " +
				"Port 0 picks a free one and prints it. Empty has everything on http-port.",
		},
	}}
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
