package maps

// The object is committed, so clang is needed only to change bpf/. One little-endian object serves amd64 and
// arm64. -mcpu=v3 (32-bit instructions) is below the kernel floor of 6.1. The system headers are those of
// Debian's libbpf-dev and linux-libc-dev; of the two folders the machine's own exists.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type drop_reason -type mode -type port_role datapath ../../bpf/datapath.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wpadded -isystem /usr/include/x86_64-linux-gnu -isystem /usr/include/aarch64-linux-gnu
