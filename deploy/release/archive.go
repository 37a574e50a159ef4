package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// file is one file of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// still are Go settings that would change a binary of the same tree.
var still = []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off"}

// linked returns the linker's flags. Go's own record of the repository is left out: it differs between a clone and a
// worktree of the same commit.
func (r *release) linked() string {
	return "-s -w -buildid= -X main.version=" + r.version + " -X github.com/tandem-pd/tandem/cmd/gateway/observe.commit=" + r.commit
}

// make makes the release in the folder out and returns the content of SHA256SUMS.
func (r *release) make(ctx context.Context, out string) (sums string, err error) {
	work, err := os.MkdirTemp("", "tandem-binaries-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	binaries := map[string]string{}
	for _, t := range r.targets {
		name := t[0] + "_" + t[1]
		binaries[name] = filepath.Join(work, name)
		err := testkit.Build{
			Dir: r.root, Environ: slices.Concat(still, r.environ, []string{"GOOS=" + t[0], "GOARCH=" + t[1]}), Name: t[0] + "/" + t[1],
			Flags:    []string{"-trimpath", "-buildvcs=false", "-ldflags", r.linked(), "-o", binaries[name]},
			Packages: []string{r.pkg},
		}.Run(ctx, r.stderr)
		if err != nil {
			return "", err
		}
	}
	common, err := r.extras(r.root)
	if err != nil {
		return "", err
	}
	products := map[string][]byte{}
	for _, t := range r.targets {
		name := t[0] + "_" + t[1]
		if err := r.pack(products, binaries[name], "tandem_"+r.version+"_"+name, common); err != nil {
			return "", err
		}
	}
	var lines []string
	for name, data := range products {
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	sums = strings.Join(lines, "")
	products["SHA256SUMS"] = []byte(sums)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	for name, data := range products {
		if err := os.WriteFile(filepath.Join(out, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return sums, nil
}

// pack adds one target's archive to products.
func (r *release) pack(products map[string][]byte, binary, stem string, common []file) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	products[stem+".tar.gz"], err = r.tar(stem, append([]file{{"gateway", 0o755, data}}, common...))
	return err
}

// tar packs files under a folder of that name: in the order of their names, owned by root, with the
// time of the commit, so that nothing of this machine is in the archive.
func (r *release) tar(folder string, files []file) ([]byte, error) {
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	packed := tar.NewWriter(zipped)
	for _, f := range files {
		h := &tar.Header{Name: folder + "/" + f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg, ModTime: r.made,
			Format: tar.FormatUSTAR}
		if err := packed.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := packed.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(packed.Close(), zipped.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// extras are the files of every archive next to the binary: of the tree the licence, the changelog and the unit.
func extras(root string) ([]file, error) {
	var files []file
	for name, path := range map[string]string{
		"LICENSE": "LICENSE", "CHANGELOG.md": "CHANGELOG.md", "systemd/tandem-gateway.service": "deploy/systemd/tandem-gateway.service",
		"systemd/gateway.yaml": "deploy/systemd/gateway.yaml", "systemd/workers.yaml": "deploy/systemd/workers.yaml",
	} {
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o644, data})
	}
	return files, nil
}
