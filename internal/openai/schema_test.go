package openai

import (
	"errors"
	"strings"
	"testing"
)

// A schema that an engine would unroll into a grammar without end is refused, wherever it may stand and however it is written.
func TestSchemasThatEnginesUnroll(t *testing.T) {
	for _, c := range []struct {
		endpoint       Endpoint
		field, members string
	}{
		{Completions, "structured_outputs", `"structured_outputs":{"json":%s}`},
		{Completions, "guided_json", `"guided_json":%s`},
		{Completions, "json_schema", `"json_schema":"%q"`},
		{Completions, "guided_json", `"guided_json":"%q"`},
		{Completions, "structural_tag", `"structural_tag":{"structures":[{"schema":%s}]}`},
		{Completions, "response_format", `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%s}}`},
		{Chat, "response_format", `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%s}}`},
		{Chat, "tools", `"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]`},
	} {
		for schema, good := range map[string]bool{
			`{"type":"array","minItems":10000,"maxLength":2000000000}`: true,
			`{"properties":{"minItems":{"type":"integer"}}}`:           true,
			`{"minItems":10001}`: false,
			`{"anyOf":[{"properties":{"a":{"items":{"maxItems":1e9}}}}]}`: false,
			`{ "min\u0049tems" : 1e999 }`:                                 false,
			`{"minProperties":99999999999999999999}`:                      false,
			`{"a":[1,"x",null,true,{"maxContains":1000000}]}`:             false,
		} {
			prompt := `"prompt":"x"`
			if c.endpoint == Chat {
				prompt = `"messages":[{"role":"user","content":"x"}]`
			}
			quoted := strings.ReplaceAll(strings.ReplaceAll(schema, `\`, `\\`), `"`, `\"`)
			body := `{"model":"m",` + prompt + `,` + strings.NewReplacer("%s", schema, "%q", quoted).Replace(c.members) + `}`
			_, err := Limits{}.Scan(c.endpoint, []byte(body))
			e, refused := errors.AsType[*Error](err)
			if refused == good || refused && e.Param != c.field {
				t.Errorf("%s: %v", body, err)
			}
		}
	}
}
