// Package wire carries records between their plain form (package record) and the protocol's messages.
//
// It refuses what is malformed or of another site; which of two versions is newer is package record's
// business. Records are not signed yet: the envelope has room for it.
package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
)

// ErrSite: the record belongs to another site.
var ErrSite = errors.New("record of another site")

// Seal wraps a record for a site.
func Seal(site record.SiteID, epoch record.Epoch, r record.Record) (*dpudv1.Envelope, error) {
	m, err := toProto(r)
	if err != nil {
		return nil, err
	}
	payload, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.Key(), err)
	}
	return &dpudv1.Envelope{SiteId: string(site), Epoch: uint64(epoch), Payload: payload}, nil
}

// Open checks an envelope and returns its record. An empty site accepts any, for a dpud that belongs to
// none yet.
func Open(site record.SiteID, e *dpudv1.Envelope) (record.Record, error) {
	if site != "" && e.GetSiteId() != string(site) {
		return nil, fmt.Errorf("open record: site %q is not %q: %w", e.GetSiteId(), site, ErrSite)
	}
	var m dpudv1.Record
	if err := proto.Unmarshal(e.GetPayload(), &m); err != nil {
		return nil, fmt.Errorf("open record: %w", err)
	}
	r, err := fromProto(&m)
	if err != nil {
		return nil, fmt.Errorf("open record: %w", err)
	}
	return r, nil
}

func toProto(r record.Record) (*dpudv1.Record, error) {
	switch r := r.(type) {
	case *record.Grant:
		return &dpudv1.Record{Kind: &dpudv1.Record_Grant{Grant: GrantToProto(r)}}, nil
	case *record.Entry:
		return &dpudv1.Record{Kind: &dpudv1.Record_Entry{Entry: EntryToProto(r)}}, nil
	case *record.Confirmation:
		return &dpudv1.Record{Kind: &dpudv1.Record_Confirmation{Confirmation: &dpudv1.Confirmation{
			Dpu: string(r.DPU), Node: uint32(r.Node), Boot: uint64(r.Boot), Sequence: r.Sequence,
			State: dpudv1.State(r.State), Epoch: uint64(r.Epoch), Generation: uint64(r.Generation), Revision: uint64(r.Revision),
		}}}, nil
	case *record.LeaseRequest:
		return &dpudv1.Record{Kind: &dpudv1.Record_LeaseRequest{LeaseRequest: &dpudv1.LeaseRequest{
			Dpu: string(r.DPU), Instance: r.Instance, Boot: uint64(r.Boot), Nonce: uint64(r.Nonce),
			HardwareId: r.HardwareID, KernelBoot: r.KernelBoot, Address: r.Address, Digest: uint64(r.Digest),
		}}}, nil
	case *record.Lease:
		l := &dpudv1.Lease{
			Dpu: string(r.DPU), Instance: r.Instance, Boot: uint64(r.Boot), Nonce: uint64(r.Nonce), Epoch: uint64(r.Epoch),
			StoreRevision: r.StoreRevision, Refused: r.Refused, Rack: string(r.Rack), Unchanged: r.Unchanged,
		}
		for _, g := range r.Grants {
			l.Grants = append(l.Grants, GrantToProto(g))
		}
		return &dpudv1.Record{Kind: &dpudv1.Record_Lease{Lease: l}}, nil
	case *record.Services:
		s := &dpudv1.Services{Epoch: uint64(r.Epoch), Revision: uint64(r.Revision)}
		for _, v := range r.Services {
			p := &dpudv1.Service{Name: v.Name, Mac: v.MAC[:]}
			for _, x := range v.Prefixes {
				p.Prefixes = append(p.Prefixes, x.String())
			}
			s.Services = append(s.Services, p)
		}
		return &dpudv1.Record{Kind: &dpudv1.Record_Services{Services: s}}, nil
	}
	return nil, fmt.Errorf("encode record: unknown type %T", r)
}

func fromProto(m *dpudv1.Record) (record.Record, error) {
	switch k := m.GetKind().(type) {
	case *dpudv1.Record_Grant:
		return GrantFromProto(k.Grant)
	case *dpudv1.Record_Entry:
		e := k.Entry
		if e.GetTenant() == 0 || e.GetNode() == 0 {
			return nil, errors.New("entry without tenant or node")
		}
		return &record.Entry{
			Tenant: record.TenantID(e.GetTenant()), Node: record.NodeID(e.GetNode()), Epoch: record.Epoch(e.GetEpoch()),
			Generation: record.Generation(e.GetGeneration()), Revision: record.Revision(e.GetRevision()), Deleted: e.GetDeleted(),
		}, nil
	case *dpudv1.Record_Confirmation:
		f := k.Confirmation
		if f.GetDpu() == "" || f.GetNode() == 0 || f.GetState() <= dpudv1.State_STATE_UNSPECIFIED || f.GetState() > dpudv1.State_STATE_CLEARED {
			return nil, errors.New("confirmation without DPU, node or state")
		}
		return &record.Confirmation{
			DPU: record.DPU(f.GetDpu()), Node: record.NodeID(f.GetNode()), Boot: record.Boot(f.GetBoot()), Sequence: f.GetSequence(),
			State: record.State(f.GetState()), Epoch: record.Epoch(f.GetEpoch()), Generation: record.Generation(f.GetGeneration()), Revision: record.Revision(f.GetRevision()),
		}, nil
	case *dpudv1.Record_LeaseRequest:
		q := k.LeaseRequest
		if q.GetDpu() == "" || q.GetInstance() == "" {
			return nil, errors.New("lease request without DPU or instance")
		}
		return &record.LeaseRequest{
			DPU: record.DPU(q.GetDpu()), Instance: q.GetInstance(), Boot: record.Boot(q.GetBoot()), Nonce: record.Nonce(q.GetNonce()),
			HardwareID: q.GetHardwareId(), KernelBoot: q.GetKernelBoot(), Address: q.GetAddress(), Digest: record.Digest(q.GetDigest()),
		}, nil
	case *dpudv1.Record_Lease:
		return leaseFromProto(k.Lease)
	case *dpudv1.Record_Services:
		return servicesFromProto(k.Services)
	}
	return nil, errors.New("unknown kind of record")
}

func leaseFromProto(l *dpudv1.Lease) (record.Record, error) {
	if l.GetDpu() == "" {
		return nil, errors.New("lease without DPU")
	}
	r := &record.Lease{
		DPU: record.DPU(l.GetDpu()), Instance: l.GetInstance(), Boot: record.Boot(l.GetBoot()), Nonce: record.Nonce(l.GetNonce()), Epoch: record.Epoch(l.GetEpoch()),
		StoreRevision: l.GetStoreRevision(), Refused: l.GetRefused(), Rack: record.Rack(l.GetRack()), Unchanged: l.GetUnchanged(),
	}
	for _, m := range l.GetGrants() {
		g, err := GrantFromProto(m)
		if err != nil {
			return nil, fmt.Errorf("lease of %s: %w", r.DPU, err)
		}
		r.Grants = append(r.Grants, g)
	}
	return r, nil
}

func servicesFromProto(s *dpudv1.Services) (record.Record, error) {
	r := &record.Services{Epoch: record.Epoch(s.GetEpoch()), Revision: record.Revision(s.GetRevision())}
	for _, m := range s.GetServices() {
		v := record.Service{Name: m.GetName()}
		if copy(v.MAC[:], m.GetMac()) != len(v.MAC) || len(m.GetMac()) != len(v.MAC) {
			return nil, fmt.Errorf("service %q: MAC of %d bytes", v.Name, len(m.GetMac()))
		}
		for _, x := range m.GetPrefixes() {
			p, err := netip.ParsePrefix(x)
			if err != nil {
				return nil, fmt.Errorf("service %q: %w", v.Name, err)
			}
			v.Prefixes = append(v.Prefixes, p)
		}
		r.Services = append(r.Services, v)
	}
	return r, nil
}

// GrantToProto encodes a grant.
func GrantToProto(g *record.Grant) *dpudv1.Grant {
	m := &dpudv1.Grant{
		Node: uint32(g.Node), Epoch: uint64(g.Epoch), Generation: uint64(g.Generation), Phase: dpudv1.Phase(g.Phase), Revision: uint64(g.Revision),
		Tenant: uint32(g.Tenant), Name: g.Name, TenantName: g.TenantName, Rack: string(g.Rack), Vni: uint32(g.VNI), Mac: g.MAC[:],
		Ports: PortsToProto(g.Ports),
	}
	for _, a := range g.Addresses {
		m.Addresses = append(m.Addresses, a.AsSlice())
	}
	for _, d := range g.Provers {
		m.Provers = append(m.Provers, string(d))
	}
	return m
}

// PortsToProto encodes where DPUs find a node.
func PortsToProto(ports []record.NodePort) []*dpudv1.NodePort {
	m := make([]*dpudv1.NodePort, len(ports))
	for i, p := range ports {
		m[i] = &dpudv1.NodePort{Dpu: string(p.DPU), Port: p.Port, Vlan: uint32(p.VLAN)}
	}
	return m
}

// EntryToProto encodes an entry.
func EntryToProto(e *record.Entry) *dpudv1.Entry {
	return &dpudv1.Entry{
		Tenant: uint32(e.Tenant), Node: uint32(e.Node), Epoch: uint64(e.Epoch),
		Generation: uint64(e.Generation), Revision: uint64(e.Revision), Deleted: e.Deleted,
	}
}

// GrantFromProto decodes and checks a grant.
func GrantFromProto(m *dpudv1.Grant) (*record.Grant, error) {
	g := &record.Grant{
		Node: record.NodeID(m.GetNode()), Epoch: record.Epoch(m.GetEpoch()), Generation: record.Generation(m.GetGeneration()),
		Phase: record.Phase(m.GetPhase()), Revision: record.Revision(m.GetRevision()), Tenant: record.TenantID(m.GetTenant()),
		Name: m.GetName(), TenantName: m.GetTenantName(), Rack: record.Rack(m.GetRack()), VNI: record.VNI(m.GetVni()),
	}
	if g.Node == 0 || g.Tenant == 0 || m.GetPhase() <= dpudv1.Phase_PHASE_UNSPECIFIED || m.GetPhase() > dpudv1.Phase_PHASE_FREE {
		return nil, errors.New("grant without node, tenant or phase")
	}
	if len(m.GetMac()) != len(g.MAC) {
		return nil, fmt.Errorf("grant of node %d: MAC of %d bytes", g.Node, len(m.GetMac()))
	}
	copy(g.MAC[:], m.GetMac())
	for _, b := range m.GetAddresses() {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil, fmt.Errorf("grant of node %d: address of %d bytes", g.Node, len(b))
		}
		g.Addresses = append(g.Addresses, a)
	}
	for _, p := range m.GetPorts() {
		if p.GetVlan() > 4094 {
			return nil, fmt.Errorf("grant of node %d: VLAN %d", g.Node, p.GetVlan())
		}
		g.Ports = append(g.Ports, record.NodePort{DPU: record.DPU(p.GetDpu()), Port: p.GetPort(), VLAN: uint16(p.GetVlan())})
	}
	for _, d := range m.GetProvers() {
		g.Provers = append(g.Provers, record.DPU(d))
	}
	return g, nil
}
