package settings

import "testing"

func TestResolvedKnowsWhoSetWhat(t *testing.T) {
	r, _, err := gatewaySet().Resolve([]string{"--http-port=1"}, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	if !r.IsSet("http-port") || r.IsSet("http-host") || r.IsSet("no-such-setting") {
		t.Error("IsSet is not whether somebody set it")
	}
	if got := r.Refuse("http-port", errTaken).Error(); got != "http-port (flag): taken" {
		t.Error(got)
	}
}
