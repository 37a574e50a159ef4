package edge

import (
	"cmp"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/handoff"
)

// TestKeysHaveSaltsOfTheirOwn: with cache-salt-by-key each key's requests have a salt that no other key's have and no
// client can choose; equal requests of one key share it.
func TestKeysHaveSaltsOfTheirOwn(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	salted := func(more string) string {
		return strings.TrimSuffix(goodBody, "}") + more + "}"
	}
	for _, byKey := range []bool{true, false} {
		sv := serve(t, loopback(t), keeps(calls), func(c *Config) {
			c.SaltByKey, c.APIKeyFile = byKey, keyFile(t, clientKey+"\n"+clientKey2)
		})
		ask := func(k, body string) string {
			sv.serves(post(body, key(k)))
			return (<-calls).Request.CacheSalt
		}
		plain, again, other := ask(clientKey, goodBody), ask(clientKey, goodBody), ask(clientKey2, goodBody)
		own, others, forged := ask(clientKey, salted(`,"cache_salt":"s"`)), ask(clientKey2, salted(`,"nvext":{"cache_salt":"s"}`)), ask(clientKey2, salted(`,"cache_salt":"`+cmp.Or(plain, "x")+`"`))
		if byKey {
			seen := map[string]bool{plain: true, other: true, own: true, others: true, forged: true}
			if len(seen) != 5 || seen[""] || seen["s"] || plain != again {
				t.Errorf("salts %q, %q again; %q of another key; %q and %q of the same salt; %q of the first's", plain, again, other, own, others, forged)
			}
		} else if plain != "" || own != "s" || others != "s" {
			t.Errorf("without the setting the salts are %q, %q and %q", plain, own, others)
		}
	}
}
