package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kernel is one row of the matrix.
type kernel struct {
	name string
	// pack is the Debian package that depends on the newest kernel image, for the architecture arch of Go.
	pack, arch string
	// qemu is the emulator with the arguments that the machine needs.
	qemu []string
	// modules that the tests need, by name; what they depend on comes along.
	modules []string
}

var kernels = []kernel{
	{
		name: "6.1-amd64", pack: "linux-image-cloud-amd64", arch: "amd64",
		qemu:    []string{"qemu-system-x86_64", "-machine", "q35", "-cpu", "max"},
		modules: []string{"veth", "bridge", "sch_ingress", "cls_bpf"},
	},
}

// boot is an unpacked kernel.
type boot struct {
	image   string
	modules []string // paths, each behind those that it depends on
}

// fetch downloads the kernel's package into the cache unless it is there, and unpacks it. Nothing is installed.
func (k kernel) fetch(cache string) (*boot, error) {
	dir := filepath.Join(cache, k.name)
	root := filepath.Join(dir, "root")
	if images, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*")); len(images) == 0 {
		if err := k.download(dir); err != nil {
			return nil, fmt.Errorf("fetch kernel %s: %w", k.name, err)
		}
	}
	images, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("fetch kernel %s: want one image in %s, have %v: %w", k.name, root, images, err)
	}
	modules, err := resolve(filepath.Join(root, "lib", "modules"), k.modules)
	if err != nil {
		return nil, fmt.Errorf("fetch kernel %s: %w", k.name, err)
	}
	return &boot{images[0], modules}, nil
}

// download leaves the unpacked package in dir/root, which is there as a whole or not at all.
func (k kernel) download(dir string) error {
	staging := filepath.Join(dir, "staging")
	if err := errors.Join(os.RemoveAll(staging), os.MkdirAll(staging, 0o755)); err != nil {
		return err
	}
	// A list that is older than the mirror names packages that are gone.
	if err := runIn(staging, "apt-get", "-q", "update"); err != nil {
		return err
	}
	image, err := k.newest()
	if err != nil {
		return err
	}
	// apt's own user may not write here, which it says and copes with.
	if err := runIn(staging, "apt-get", "-q", "download", image); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(staging, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("download %s: got %v", image, packages)
	}
	if err := runIn(staging, "dpkg", "-x", packages[0], "unpacked"); err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	return errors.Join(os.RemoveAll(root), os.Rename(filepath.Join(staging, "unpacked"), root), os.RemoveAll(staging))
}

// newest asks which image package the kernel's package depends on.
func (k kernel) newest() (string, error) {
	out, err := exec.Command("apt-cache", "depends", k.pack).Output()
	if err != nil {
		return "", fmt.Errorf("find the newest kernel of %s: %w", k.pack, err)
	}
	for line := range strings.Lines(string(out)) {
		if image, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + image, nil
		}
	}
	return "", fmt.Errorf("find the newest kernel of %s: it depends on none:\n%s", k.pack, out)
}

func runIn(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// resolve returns the files of modules and of all that they depend on, in the order in which to load them.
func resolve(dir string, names []string) ([]string, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list modules: %w", err)
	}
	var order []string
	var add func(name string) error
	add = func(name string) error {
		path, ok := files[strings.ReplaceAll(name, "-", "_")]
		if !ok {
			return fmt.Errorf("find module %s: it is not in %s", name, dir)
		}
		needs, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		if !slices.Contains(order, path) {
			order = append(order, path)
		}
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// dependencies reads what a module says of itself: "depends=a,b" in its section .modinfo.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: no .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	return parseDepends(info), nil
}

func parseDepends(info []byte) []string {
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ",")
		}
	}
	return nil
}
