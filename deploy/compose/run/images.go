package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// images are the images that compose.yaml is given, and which of them are ours to remove.
type images struct {
	gateway, nats, etcd string
	packaged            map[string]string // by the variable that names it
	made                []string
}

// environ names them in compose.yaml's variables.
func (i *images) environ() []string {
	all := []string{"TANDEM_IMAGE=" + i.gateway, "TANDEM_NATS_IMAGE=" + i.nats, "TANDEM_ETCD_IMAGE=" + i.etcd}
	for _, variable := range slices.Sorted(maps.Keys(i.packaged)) {
		all = append(all, variable+"="+i.packaged[variable])
	}
	return all
}

// roots are the systems' files of trusted certificate authorities.
var roots = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
	"/etc/ssl/ca-bundle.pem",             // openSUSE
	"/etc/ssl/cert.pem",                  // macOS
}

// static returns an error for a binary that needs a loader: in an image without one the kernel reports only that there
// is no such file.
func static(binary []byte) error {
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("no Linux binary: %w", err)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("linked dynamically, and the image has no loader: build it with CGO_ENABLED=0 or make build")
	}
	return nil
}

// buildImages builds the static binaries and puts each into an image from scratch, with the tag given. NATS and etcd
// are built unless the environment names images of theirs; so are the servers that each compose.NAME.yaml in with adds.
// gateway is a binary to use instead of building one.
func buildImages(ctx context.Context, d *docker, tag, gateway string, log io.Writer, with ...string) (*images, error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "tandem-compose-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	i := &images{
		gateway: "tandem-gateway:" + tag, nats: os.Getenv("TANDEM_NATS_IMAGE"), etcd: os.Getenv("TANDEM_ETCD_IMAGE"),
		packaged: map[string]string{},
	}
	build := testkit.Build{
		Dir: d.root, Environ: []string{"CGO_ENABLED=0", "GOOS=linux"}, Name: "binaries for the images",
		Flags: []string{"-trimpath", "-ldflags", "-s -w -X main.version=compose", "-o", dir + string(filepath.Separator)},
	}
	if gateway == "" {
		build.Packages = append(build.Packages, "./cmd/gateway")
		gateway = filepath.Join(dir, "gateway")
	}
	if i.nats == "" || i.etcd == "" {
		build.Packages = append(build.Packages, "./deploy/compose/run")
	}
	if len(build.Packages) > 0 {
		if err := build.Run(ctx, log); err != nil {
			return i, err
		}
	}
	certificates, err := readRoots()
	if err != nil {
		return i, err
	}
	binary, err := os.ReadFile(gateway)
	if err == nil {
		err = static(binary)
	}
	if err != nil {
		return i, fmt.Errorf("gateway %s: %w", gateway, err)
	}
	license, err := os.ReadFile(filepath.Join(d.root, "LICENSE"))
	if err != nil {
		return i, err
	}
	err = i.build(ctx, d, i.gateway, "Dockerfile", []file{
		{"LICENSE", 0o644, license}, {"bin/gateway", 0o755, binary}, {"bin/ca-certificates.crt", 0o644, certificates}, {"bin/data/", 0o755, nil},
	})
	for _, server := range []struct {
		name  string
		image *string
	}{{"nats", &i.nats}, {"etcd", &i.etcd}} {
		if err != nil {
			return i, err
		}
		if *server.image != "" {
			continue
		}
		*server.image = "tandem-" + server.name + ":" + tag
		if binary, err = os.ReadFile(filepath.Join(dir, "run")); err != nil {
			return i, err
		}
		err = i.build(ctx, d, *server.image, "deploy/compose/images/"+server.name+"/Dockerfile", []file{{server.name, 0o755, binary}})
	}
	names := []string{i.gateway, i.nats, i.etcd}
	for _, name := range with {
		if err != nil {
			return i, err
		}
		err = i.buildPackaged(ctx, d, tag, name)
		names = append(names, i.packaged[packages[name].variable()])
	}
	fmt.Fprintf(log, "images: %s, in %.0f s\n", strings.Join(names, ", "), time.Since(start).Seconds())
	return i, err
}

// file is one entry of a build context. A folder's name ends in a slash.
type file struct {
	name string
	mode int64
	data []byte
}

// build sends a context with a Dockerfile of the tree to the engine. It never uses BuildKit, so that every machine
// builds alike.
func (i *images) build(ctx context.Context, d *docker, tag, dockerfile string, files []file) error {
	recipe, err := os.ReadFile(filepath.Join(d.root, filepath.FromSlash(dockerfile)))
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	archive := tar.NewWriter(&buf)
	for _, f := range append(files, file{"Dockerfile", 0o644, recipe}) {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if f.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	i.made = append(i.made, tag)
	_, err = d.feed(ctx, &buf, []string{"DOCKER_BUILDKIT=0"}, "docker", "build", "--quiet", "--force-rm", "--tag", tag, "-")
	return err
}

// remove deletes the images that were built.
func (i *images) remove(ctx context.Context, d *docker) error {
	if len(i.made) == 0 {
		return nil
	}
	_, err := d.do(ctx, append([]string{"image", "rm"}, i.made...)...)
	return err
}

// readRoots finds this machine's certificates.
func readRoots() ([]byte, error) {
	for _, name := range roots {
		if data, err := os.ReadFile(name); err == nil {
			return data, nil
		}
	}
	return nil, fmt.Errorf("no file of CA roots among %q: install the ca-certificates package", roots)
}
