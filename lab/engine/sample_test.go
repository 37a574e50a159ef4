package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// valid checks a value with a validator that is not the sampler's.
func valid(t *testing.T, schema, value string) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	require.NoError(t, err, schema)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("s.json", doc), schema)
	s, err := c.Compile("s.json")
	require.NoError(t, err, schema)
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(value))
	require.NoError(t, err, value)
	assert.NoError(t, s.Validate(v), "%s of %s", value, schema)
}

// jsonOf is a schema as a request has it.
func jsonOf(t *testing.T, text string) (v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v
}

// Values are valid under their schemas, as the libraries of clients write them.
func TestSamplesAreValid(t *testing.T) {
	for _, schema := range []string{
		`true`, `{}`, `{"type":"object"}`, `{"type":"object","properties":{}}`, `{"type":"object","additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"},"c":{"type":"boolean"},"d":{"type":"null"}},"required":["a"],"additionalProperties":false}`,
		`{"type":"object","properties":{"unit":{"enum":["C","F"]},"kind":{"const":"x"},"n":{"type":["null","number"]}}}`,
		`{"type":"object","required":["a","b"],"properties":{"a":{"type":"string"}},"additionalProperties":{"type":"integer"}}`,
		`{"type":"object","additionalProperties":{"type":"number"}}`, `{"type":"object","minProperties":3,"additionalProperties":{"type":"string"}}`,
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"maxProperties":1,"required":["b"]}`,
		`{"type":"array","items":{"type":"string"},"minItems":3,"uniqueItems":true}`, `{"type":"array","items":{"type":"integer"},"maxItems":0}`,
		`{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false,"minItems":2}`,
		`{"type":"array","items":{"enum":["a","b","c"]},"minItems":3,"uniqueItems":true}`,
		`{"type":"integer","minimum":5}`, `{"type":"integer","maximum":-5}`, `{"type":"integer","exclusiveMinimum":5,"exclusiveMaximum":7}`,
		`{"type":"number","exclusiveMinimum":0.1,"exclusiveMaximum":0.2}`, `{"type":"number","multipleOf":0.5,"minimum":3.2}`,
		`{"type":"integer","multipleOf":7,"maximum":30,"minimum":15}`, `{"type":"number","exclusiveMaximum":-3}`, `{"type":"number","exclusiveMinimum":1}`,
		`{"type":"integer","minimum":-90,"maximum":90}`,
		`{"type":"string","minLength":40,"maxLength":41}`, `{"type":"string","maxLength":3}`, `{"type":"string","minLength":2000}`,
		`{"type":"string","format":"date"}`, `{"type":"string","format":"date-time"}`, `{"type":"string","format":"time"}`, `{"type":"string","format":"email"}`,
		`{"type":"string","format":"uuid"}`, `{"type":"string","format":"uri"}`, `{"type":"string","format":"ipv4"}`, `{"type":"string","format":"ipv6"}`,
		`{"type":"string","format":"hostname"}`, `{"type":"string","format":"duration"}`, `{"type":"string","format":"regex"}`,
		`{"type":"string","pattern":"^[A-Z]{2}-\\d{4}$"}`, `{"type":"string","pattern":"^(foo|bar)+\\.txt$","minLength":12}`, `{"type":"string","pattern":"[^a-z]\\s*x?"}`,
		`{"anyOf":[{"type":"null"},{"type":"string"}]}`, `{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"}},"required":["kind"]},{"type":"string"}]}`,
		`{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":{"type":"integer"}},"required":["b"]}]}`,
		`{"$defs":{"p":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}},"type":"object","properties":{"at":{"$ref":"#/$defs/p"}},"required":["at"]}`,
		`{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"}`,
		`{"$defs":{"t":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}},"required":["kids"]}},"$ref":"#/$defs/t"}`,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"b":{"type":"array","items":{"type":"string"},"minItems":2}}},"minItems":30}}}`,
	} {
		text := sample(json.RawMessage(schema), "", false)
		valid(t, schema, text)
		assert.Equal(t, text, sample(json.RawMessage(schema), "", false))
		assert.LessOrEqual(t, len(text), mostBytes, schema)
	}
}

// A user can choose: what is in quotes becomes a text, and a word the member of an enum.
func TestSamplesOfTheUsersWords(t *testing.T) {
	const schema = `{"properties":{"path":{"type":"string"},"unit":{"enum":["C","Fahrenheit"]},"with":{"type":"string"}}}`
	assert.Equal(t, `{"path":"a.go","unit":"Fahrenheit","with":"x y"}`, sample(json.RawMessage(schema), `read "a.go" in fahrenheit, “x y”`, false))
}

// A call has what its schema requires, and of the rest what the user's words choose.
func TestCallsLeaveOutWhatIsOptional(t *testing.T) {
	const schema = `{"properties":{"command":{"type":"string"},"mode":{"enum":["slow","fast"]},"sandbox":{"enum":["on","off"]},` +
		`"timeout":{"type":"integer"},"in_background":{"type":"boolean"}},"required":["command"]}`
	assert.JSONEq(t, `{"command":"ls","mode":"fast"}`, sample(json.RawMessage(schema), `run "ls" fast`, true))
	assert.JSONEq(t, `{"city":"Rome"}`, sample(json.RawMessage(`{"properties":{"city":{"type":"string"}}}`), `"Rome"`, true))
}

// No schema takes long, or makes a value without an end.
func FuzzSample(f *testing.F) {
	f.Add(`{"$defs":{"n":{"type":"object","required":["a","b"],"properties":{"a":{"$ref":"#/$defs/n"},"b":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"}`, "")
	f.Add(`{"allOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}`, `"a"`)
	f.Add(`{"type":"array","minItems":1e18,"items":{"type":"array","minItems":1e18,"items":{"minLength":1e18}}}`, "")
	f.Add(`{"pattern":"((a{1000})*)+","minLength":100000}`, "")
	f.Add(`{"type":"integer","multipleOf":1e-300,"maximum":-1e300}`, "")
	f.Fuzz(func(t *testing.T, schema, said string) {
		text := sample(json.RawMessage(schema), said, len(schema)%2 == 0)
		assert.True(t, json.Valid([]byte(text)), text)
		assert.Less(t, len(text), 1<<20)
	})
}
