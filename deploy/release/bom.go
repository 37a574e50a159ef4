package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The bill of materials is in CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/: a Go binary's modules with their
// versions and checksums, and Go itself.
type (
	billOfMaterials struct {
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Serial       string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Time       string     `json:"timestamp"`
		Component  component  `json:"component"`
		Properties []property `json:"properties,omitempty"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl,omitempty"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn"`
	}
)

// bom lists the contents of a binary. Its serial number is derived from the binary's hash.
func bom(info *debug.BuildInfo, version, commit string, made time.Time, binary []byte) ([]byte, error) {
	sum := sha256.Sum256(binary)
	main := component{
		Type: "application", Ref: "pkg:golang/" + info.Main.Path + "@" + version, Name: info.Main.Path, Version: version,
		PURL: "pkg:golang/" + info.Main.Path + "@" + version, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	b := billOfMaterials{
		Format: "CycloneDX", Spec: "1.6", Serial: serial(sum), Version: 1,
		Metadata: metadata{Time: made.Format(time.RFC3339), Component: main},
	}
	b.Metadata.Properties = append(b.Metadata.Properties, property{"tandem:commit", commit})
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "GO") || s.Key == "CGO_ENABLED" {
			b.Metadata.Properties = append(b.Metadata.Properties, property{"tandem:go:build:" + s.Key, s.Value})
		}
	}
	all := []component{standardLibrary(info.GoVersion)}
	for _, d := range info.Deps {
		c, err := moduleOf(d)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	b.Components = all
	needs := dependency{Ref: main.Ref}
	for _, c := range all {
		needs.On = append(needs.On, c.Ref)
		b.Dependencies = append(b.Dependencies, dependency{Ref: c.Ref, On: []string{}})
	}
	b.Dependencies = append([]dependency{needs}, b.Dependencies...)
	text, err := json.MarshalIndent(&b, "", "  ")
	return append(text, '\n'), err
}

// standardLibrary is Go's own part of a binary, under the name by which vulnerability databases list it.
func standardLibrary(goVersion string) component {
	version, _, _ := strings.Cut(strings.TrimPrefix(goVersion, "go"), " ")
	return component{Type: "library", Ref: "pkg:golang/stdlib@" + version, Name: "stdlib", Version: version, PURL: "pkg:golang/stdlib@" + version}
}

// moduleOf returns a module as it was compiled in: its replacement, if any.
func moduleOf(m *debug.Module) (component, error) {
	for m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
	if m.Sum == "" {
		return c, nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
	if err != nil || len(raw) != sha256.Size {
		return c, fmt.Errorf("%s %s: %q is no checksum of a module", m.Path, m.Version, m.Sum)
	}
	// go.sum's own form: the hash of the list of the module's files' hashes, not of one file.
	c.Properties = []property{{"tandem:go:h1", m.Sum}}
	return c, nil
}

// serial is a UUID of version 8, made of a hash.
func serial(sum [sha256.Size]byte) string {
	u := sum[:16]
	u = slices.Clone(u)
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
