package wire

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
)

var grant = &record.Grant{
	Node: 7, Epoch: 3, Generation: 2, Phase: record.Revoked, Revision: 5, Tenant: 4, Name: "n7", TenantName: "t4",
	Rack: "r1", VNI: 1004, MAC: record.MAC{2, 0, 0, 0, 0, 7},
	Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")},
	Ports:     []record.NodePort{{DPU: "d1", Port: "p7"}, {DPU: "d2", Port: "uplink0", VLAN: 9}},
	Provers:   []record.DPU{"d1", "d2"},
}

// everyRecord has one of each kind with every field set, so that a field that is forgotten shows.
var everyRecord = []record.Record{
	grant,
	&record.Entry{Tenant: 4, Node: 7, Epoch: 3, Generation: 2, Revision: 6, Deleted: true},
	&record.Confirmation{DPU: "d1", Node: 7, Boot: 8, Sequence: 9, State: record.Cleared, Epoch: 3, Generation: 2, Revision: 5},
	&record.LeaseRequest{DPU: "d1", Instance: "i", Boot: 8, Nonce: 10, HardwareID: "hw", KernelBoot: "kb", Address: "http://192.0.2.1:1", Digest: 11},
	&record.Lease{DPU: "d1", Instance: "i", Boot: 8, Nonce: 10, Epoch: 3, StoreRevision: 12, Refused: "no", Rack: "r1", Grants: []*record.Grant{grant}, Unchanged: true},
	&record.Services{Epoch: 3, Revision: 2, Services: []record.Service{{Name: "dns", Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, MAC: record.MAC{2, 0, 0, 0, 1, 1}}}},
}

func TestRoundTrip(t *testing.T) {
	addresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	for _, r := range everyRecord {
		e, err := Seal("site", 3, r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Open("site", e)
		if err != nil {
			t.Fatalf("%s: %v", r.Key(), err)
		}
		if diff := cmp.Diff(r, got, addresses, prefixes); diff != "" {
			t.Errorf("%s: %s", r.Key(), diff)
		}
		if _, err := Open("another", e); !errors.Is(err, ErrSite) {
			t.Errorf("%s opens in another site: %v", r.Key(), err)
		}
	}
}

func TestReplicaKeepsTheNewest(t *testing.T) {
	var heard []record.Key
	r := NewReplica("site", func(rec record.Record) { heard = append(heard, rec.Key()) })
	older := *grant
	older.Phase = record.Granted
	for _, g := range []*record.Grant{grant, &older, grant} {
		e, err := Seal("site", 3, g)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Merge(b); err != nil {
			t.Fatal(err)
		}
	}
	if len(heard) != 1 {
		t.Errorf("heard %v, want the revoked grant once", heard)
	}
	version, _, ok := r.Get(grant.Key())
	if !ok || version != grant.Version() {
		t.Errorf("holds %v, want %v", version, grant.Version())
	}
}

// FuzzOpen: whatever a peer sends, it is a record that survives a round trip or an error.
func FuzzOpen(f *testing.F) {
	for _, r := range everyRecord {
		e, err := Seal("site", 3, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.GetPayload())
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := Open("site", &dpudv1.Envelope{SiteId: "site", Payload: payload})
		if err != nil {
			return
		}
		e, err := Seal("site", 3, r)
		if err != nil {
			t.Fatalf("opened but can't be sealed: %v", err)
		}
		again, err := Open("site", e)
		if err != nil {
			t.Fatalf("sealed but can't be opened: %v", err)
		}
		if again.Key() != r.Key() || again.Version() != r.Version() {
			t.Fatalf("%s %v became %s %v", r.Key(), r.Version(), again.Key(), again.Version())
		}
	})
}
