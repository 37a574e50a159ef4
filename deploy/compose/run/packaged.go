package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packaged is a server that is no Go module. Without a named image, one is made of Debian's package.
type packaged struct {
	name    string // of the package, and of the folder in images/
	program string // where the package has it
	public  string // where the public image has it, as compose.NAME.yaml starts it
}

// packages are the servers that a compose.NAME.yaml adds, by that name.
var packages = map[string]packaged{
	"observe":  {"prometheus", "/usr/bin/prometheus", "/bin/prometheus"},
	"replicas": {"haproxy", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy"},
}

// variable names the image to use in place of one that is made.
func (p packaged) variable() string { return "TANDEM_" + strings.ToUpper(p.name) + "_IMAGE" }

// buildPackaged makes the image of the server that compose.WITH.yaml adds, unless the environment names one. The
// program is this machine's if it has it; else apt-get fetches it and the libraries that are missing, and installs
// nothing.
func (i *images) buildPackaged(ctx context.Context, d *docker, tag, with string) error {
	p := packages[with]
	if image := os.Getenv(p.variable()); image != "" {
		i.packaged[p.variable()] = image
		return nil
	}
	root := ""
	if _, err := os.Stat(p.program); err != nil {
		if root, err = os.MkdirTemp("", "tandem-"+p.name+"-"); err != nil {
			return err
		}
		defer os.RemoveAll(root)
		if err := fetch(ctx, p.name, root); err != nil {
			return fmt.Errorf("there is no %s here, and %s names no image: %w", p.program, p.variable(), err)
		}
	}
	paths, err := linkedTo(ctx, root, p.program)
	if err != nil {
		return err
	}
	var files []file
	for _, path := range append(paths, root+p.program) {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if name == p.program {
			name = p.public
		}
		files = append(files, file{"root" + name, 0o755, data})
	}
	image := "tandem-" + p.name + ":" + tag
	i.packaged[p.variable()] = image
	return i.build(ctx, d, image, "deploy/compose/images/"+p.name+"/Dockerfile", files)
}

// fetch unpacks a package and those it needs that are not installed below root.
func fetch(ctx context.Context, name, root string) error {
	for _, command := range [][]string{
		{"apt-get", "-qq", "-y", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1", "-o", "Dir::Cache::archives=" + root,
			"install", "--download-only", "--no-install-recommends", name},
		{"sh", "-c", `for p in *.deb; do dpkg-deb -x "$p" . || exit 1; done`},
	} {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command[0], err, tail(string(out), 5))
		}
	}
	return nil
}

// linkedTo are the libraries of a program below root, from there or of this machine.
func linkedTo(ctx context.Context, root, program string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ldd", root+program)
	if root != "" {
		folders, _ := filepath.Glob(root + "/usr/lib/*-linux-gnu") // the pattern is right
		more, _ := filepath.Glob(root + "/lib/*-linux-gnu")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(append(folders, more...), ":"))
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	if strings.Contains(string(out), "not found") {
		return nil, fmt.Errorf("%s lacks libraries:\n%s", program, out)
	}
	return libraries(string(out)), nil
}

// libraries returns the files that a program is linked to, from the output of ldd: "name => /path (address)" or, for
// the loader itself, "/path (address)".
func libraries(linked string) (found []string) {
	for line := range strings.Lines(linked) {
		if _, path, ok := strings.Cut(line, "=> "); ok {
			line = path
		}
		path, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(path, "/") {
			found = append(found, path)
		}
	}
	return found
}
