package gossip

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"

	"dpud/pkg/record"
)

var samples = []message{
	{typ: typeRecord, items: []item{grant(1, 2, 300)}},
	{typ: typeAnnounce, from: "d1", items: []item{{key: grant(1, 2, 0).key, version: grant(1, 2, 0).version}}},
	{typ: typeDigest, from: "d1", digests: digests{1, 2, 63: ^record.Digest(0)}},
	{typ: typeVersions, from: "d1", buckets: 1<<63 | 1, items: []item{{
		key:     record.Key{Kind: record.KindEntry, Tenant: 1<<32 - 1, Node: 1<<32 - 1},
		version: record.Version{1<<64 - 1, 0, 1, 2},
	}}},
	{typ: typeVersions, from: "d1", buckets: 7},
	{typ: typePull, from: "d1", items: []item{{key: record.Key{Kind: record.KindLease, Name: "d7"}}, {key: grant(1, 0, 0).key}}},
	{typ: typeRecords, items: []item{grant(1, 2, 3), grant(2, 2, 0)}},
}

func TestParse(t *testing.T) {
	for _, want := range samples {
		b := want.append(nil)
		got, err := parse(b)
		if err != nil {
			t.Errorf("type %d: %v", want.typ, err)
			continue
		}
		if d := cmp.Diff(&want, got, cmp.AllowUnexported(message{}, item{}), cmp.Comparer(bytes.Equal)); d != "" {
			t.Errorf("type %d: -want +got\n%s", want.typ, d)
		}
		// Cut anywhere, it is an error or ends after a whole item.
		for i := range b {
			m, err := parse(b[:i])
			if err != nil {
				continue
			}
			if again := m.append(nil); !bytes.Equal(again, b[:i]) {
				t.Errorf("type %d cut at %d: read as %d bytes", want.typ, i, len(again))
			}
		}
	}
}

func TestParseErrors(t *testing.T) {
	long := message{typ: typePull, from: string(make([]byte, maxName+1))}
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "parse message: truncated"},
		{"type 0", []byte{0}, "parse message: unknown type 0"},
		{"type 99", []byte{99, 1}, "parse message: unknown type 99"},
		{"too long", make([]byte, maxMessage+1), "parse message: 4194305 bytes, want at most 4194304"},
		{"name too long", long.append(nil), "parse message of type 5: number too large"},
		{"length beyond the end", []byte{byte(typePull), 2, 'd'}, "parse message of type 5: truncated"},
		{"number beyond 64 bits", append([]byte{byte(typePull)}, bytes.Repeat([]byte{0xff}, 11)...), "parse message of type 5: number too large"},
		{"node beyond 32 bits", []byte{byte(typePull), 0, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x1f}, "parse message of type 5: number too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if m, err := parse(tt.b); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, %v, want %s", m, err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range samples {
		f.Add(m.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		if len(m.items) > len(b)/4 {
			t.Fatalf("%d items from %d bytes", len(m.items), len(b))
		}
		again, err := parse(m.append(nil))
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if d := cmp.Diff(m, again, cmp.AllowUnexported(message{}, item{}), cmp.Comparer(bytes.Equal)); d != "" {
			t.Fatal(d)
		}
	})
}

// TestGarbage lets one member send garbage, well framed, and a stranger send packets of noise.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(3)
		p.members[0].change(grant(1, 1, 300))
		p.converge(5 * time.Second)
		rnd := rand.New(rand.NewPCG(1, 1))
		stranger := p.net.host(testAddr(99))
		bad := p.members[2]
		node, _ := bad.roster.node("d1")
		for i := range 3000 {
			m := samples[rnd.IntN(len(samples))]
			m.from = []string{"d1", "d2", "d3", "nobody", ""}[rnd.IntN(5)]
			b := m.append(nil)
			for range rnd.IntN(4) {
				b[rnd.IntN(len(b))] = byte(rnd.Uint32())
			}
			b = b[:rnd.IntN(len(b)+1)]
			if i%2 == 0 {
				_ = bad.ml.SendBestEffort(&node, b)
			} else {
				_ = bad.ml.SendReliable(&node, b)
			}
			noise := make([]byte, rnd.IntN(100))
			for j := range noise {
				noise[j] = byte(rnd.Uint32())
			}
			label, _ := memberlist.AddLabelHeaderToPacket(noise, "s1/r1")
			stranger.inject(label, p.members[0].addr)
			stranger.inject(noise, p.members[1].addr)
			time.Sleep(time.Millisecond)
		}
		s := p.members[0].Stats()
		if s.Malformed == 0 {
			t.Errorf("nothing malformed was seen: %+v", s)
		}
		p.members[1].change(grant(2, 1, 300), grant(3, 1, 64<<10))
		p.within(20*time.Second, "the others to converge all the same", func() bool {
			v, ok := p.members[0].regs.Version(grant(3, 1, 0).key)
			return ok && v == grant(3, 1, 0).version
		})
	})
}

// TestFlood checks that a queue that is full, by number or by bytes, drops and counts, and that digests repair it.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(2)
		d1, d2 := p.members[0], p.members[1]
		// dropped floods d1 while its owner is busy.
		dropped := func(flood func()) uint64 {
			before := d1.Stats().Dropped
			d1.regs.mu.Lock()
			defer d1.regs.mu.Unlock()
			flood()
			return d1.Stats().Dropped - before
		}
		n := dropped(func() {
			for node := range inboxLen + 100 {
				it := grant(node, 1, 300)
				d2.regs.put(it)
				_, it.payload, _ = d2.regs.Get(it.key)
				d1.receive((&message{typ: typeRecord, items: []item{it}}).append(nil))
			}
		})
		if n < 99 { // one may be in hand
			t.Errorf("dropped %d", n)
		}
		p.converge(10 * time.Second)

		const size = 3 << 20
		const sent = 2 * inboxBytes / size
		n = dropped(func() {
			d1.receive((&message{typ: typeRecord, items: []item{grant(1, 2, 300)}}).append(nil)) // holds up the rest
			for range sent {
				d1.receive(make([]byte, size))
			}
		})
		if n < sent-inboxBytes/size {
			t.Errorf("dropped %d of %d messages of %d bytes", n, sent, size)
		}
	})
}

// TestStalledPeer sends to a peer that accepts a stream and reads nothing.
func TestStalledPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.host(testAddr(2))
		tr := &transport{NodeAwareTransport: n.host(testAddr(1)), timeout: 5 * time.Second, conns: make(map[*conn]struct{})}
		dial := func() net.Conn {
			c, err := tr.DialAddressTimeout(memberlist.Address{Addr: testAddr(2).String()}, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		start := time.Now()
		c := dial()
		if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("write took %v", d)
		}
		_ = c.Close()
		if len(tr.conns) != 0 {
			t.Errorf("%d streams are kept", len(tr.conns))
		}

		c = dial()
		time.AfterFunc(time.Second, func() { _ = tr.Shutdown() })
		if _, err := c.Write([]byte("x")); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write during shutdown: %v", err)
		}
		if _, err := tr.DialAddressTimeout(memberlist.Address{Addr: testAddr(2).String()}, time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial after shutdown: %v", err)
		}
	})
}
