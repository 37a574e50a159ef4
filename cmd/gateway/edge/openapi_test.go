package edge

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The document lists each route of the address that serves it, and no others.
func TestDocumentListsRoutes(t *testing.T) {
	console := func(c *Config) { c.Console = newPaper() }
	together, plain := serve(t, loopback(t), answerJSON, console), serve(t, loopback(t), answerJSON)
	apart := serve(t, loopback(t), answerJSON, console, func(c *Config) { c.AdminAddress = "127.0.0.1:0" })
	admin, _ := apart.administered()
	all := operations(t, parsed(t, string(openapiJSON)))
	for f, sv := range map[*frontend]*served{together.main: together, plain.main: plain, apart.main: apart, apart.admin: admin} {
		doc := parsed(t, sv.serves(get("GET /openapi.json")))
		assert.Equal(t, "v0.1.0", doc["info"].(map[string]any)["version"])
		var rows []string
		for _, r := range f.table(http.NotFoundHandler()) {
			path, method := r.described()
			rows = append(rows, method+" "+path)
		}
		if f == together.main {
			assert.ElementsMatch(t, rows, slices.Collect(maps.Keys(all)), "the rows, and openapi.json")
		}
		listed := operations(t, doc)
		assert.ElementsMatch(t, rows, slices.Collect(maps.Keys(listed)))
		for name, operation := range listed {
			assert.Equal(t, all[name], operation, name)
		}
	}
	ids := map[any]string{}
	for name, operation := range all {
		id := operation["operationId"]
		assert.Empty(t, ids[id], "%s has the operationId of another: %v", name, id)
		ids[id] = name
		for _, member := range []string{"summary", "tags", "responses"} {
			assert.NotEmpty(t, operation[member], "%s of %s", member, name)
		}
		for _, part := range strings.Split(name, "/") {
			if parameter, ok := strings.CutPrefix(part, "{"); ok {
				assert.Contains(t, string(openapiJSON), `"name": "`+strings.TrimSuffix(parameter, "}")+`", "in": "path"`)
			}
		}
	}
}

// operations are the members of paths, by method and path.
func operations(t *testing.T, doc map[string]any) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for path, methods := range doc["paths"].(map[string]any) {
		for method, operation := range methods.(map[string]any) {
			require.IsType(t, map[string]any{}, operation, "%s %s", method, path)
			all[method+" "+path] = operation.(map[string]any)
		}
	}
	return all
}

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err)
	return v.(map[string]any)
}

// The document is one of OpenAPI 3.1, by the schema of its authors (testdata/oas31-schema.json is that of its $id; with
// JSON Schema 2020-12 as the dialect of the schemas in it), and its references lead somewhere.
func TestDocumentIsOpenAPI(t *testing.T) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	official, err := os.ReadFile("testdata/oas31-schema.json")
	require.NoError(t, err)
	schema := parsed(t, string(official))
	require.NoError(t, c.AddResource(schema["$id"].(string), schema))
	require.NoError(t, c.AddResource("whole.json", map[string]any{
		"$schema": schema["$schema"], "$ref": schema["$id"],
		"$defs": map[string]any{"dialect": map[string]any{"$dynamicAnchor": "meta", "$ref": schema["$schema"]}},
	}))
	openapi, err := c.Compile("whole.json")
	require.NoError(t, err)
	sv := serve(t, newPipes(), answerJSON)
	whole := string(sv.main.document)
	doc := parsed(t, whole)
	require.NoError(t, openapi.Validate(doc))
	for broken, by := range map[string]string{ // and the schema finds what is wrong
		`"summary":`: `"sumary":`, `"type":"object"`: `"type":"objekt"`, `"in":"path"`: `"in":"paht"`, `"responses":{"200":`: `"responses":{"2000":`,
	} {
		require.Contains(t, whole, broken)
		assert.Error(t, openapi.Validate(parsed(t, strings.Replace(whole, broken, by, 1))), by)
	}
	refer(t, doc, doc)
}

// refer checks the references below v.
func refer(t *testing.T, doc map[string]any, v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			refer(t, doc, e)
		}
	case map[string]any:
		for name, e := range v {
			ref, ok := e.(string)
			if name != "$ref" || !ok {
				refer(t, doc, e)
				continue
			}
			var at any = doc
			for _, step := range strings.Split(ref, "/")[1:] {
				at, _ = at.(map[string]any)[step]
			}
			assert.NotNil(t, at, ref)
		}
	}
}

// Bodies of real clients are requests as the document describes them.
func TestDocumentDescribesClients(t *testing.T) {
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("openapi.json", parsed(t, string(openapiJSON))))
	check := func(name string, schema string, body any) {
		t.Helper()
		s, err := c.Compile("openapi.json#/components/schemas/" + schema)
		require.NoError(t, err)
		assert.NoError(t, s.Validate(body), name)
	}
	files, err := filepath.Glob("../../../internal/openai/testdata/bodies/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		body := parsed(t, string(text))
		schema := "ChatRequest"
		if body["prompt"] != nil {
			schema = "CompletionRequest"
		}
		check(name, schema, body)
	}
	for _, of := range []struct{ folder, schema string }{{"messages", "MessagesRequest"}, {"responses", "ResponsesRequest"}} {
		text, err := os.ReadFile("../dialect/testdata/" + of.folder + "/cases.json")
		require.NoError(t, err)
		cases, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		for name, body := range cases.(map[string]any)["requests"].(map[string]any) {
			check(name, of.schema, body)
		}
	}
}
