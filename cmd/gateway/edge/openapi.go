package edge

import (
	_ "embed" // for the document
	"encoding/json"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// openapiJSON describes all routes; a test compares it with them.
//
//go:embed openapi.json
var openapiJSON []byte

// documentPath is where a frontend describes its routes.
const documentPath = "/openapi.json"

// document returns OpenAPI's description of rows: of the whole document, their paths.
func document(rows []route, version string) []byte {
	var d struct {
		OpenAPI    string                                `json:"openapi"`
		Info       map[string]any                        `json:"info"`
		Servers    json.RawMessage                       `json:"servers"`
		Security   json.RawMessage                       `json:"security"`
		Tags       json.RawMessage                       `json:"tags"`
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components json.RawMessage                       `json:"components"`
	}
	_ = json.Unmarshal(openapiJSON, &d) // a test reads it
	d.Info["version"] = version
	all := d.Paths
	d.Paths = map[string]map[string]json.RawMessage{}
	for _, r := range rows {
		path, method := r.described()
		if d.Paths[path] == nil {
			d.Paths[path] = map[string]json.RawMessage{}
		}
		d.Paths[path][method] = all[path][method]
	}
	b, _ := json.Marshal(d)
	return b
}

// described returns the route's path and method as OpenAPI writes them.
func (r *route) described() (path, method string) {
	parts := strings.Split(r.path, "/")
	for i, part := range parts {
		if name, ok := strings.CutPrefix(part, ":"); ok {
			parts[i] = "{" + name + "}"
		} else if part == "*" {
			parts[i] = "{name}"
		}
	}
	return strings.Join(parts, "/"), strings.ToLower(r.method)
}

// describe serves the document.
func (f *frontend) describe(c *fiber.Ctx) error {
	c.Context().Response.Header.SetContentType("application/json")
	c.Context().Response.SetBodyRaw(f.document)
	return nil
}
