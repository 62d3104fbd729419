package cli

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"dpud/pkg/api/dpudv1"
)

// What -o json and -o yaml print. The names are documented in docs/ctl.md: add fields, never rename them.
type (
	nodeView struct {
		Name       string      `json:"name"`
		ID         uint32      `json:"id"`
		Rack       string      `json:"rack"`
		MAC        string      `json:"mac"`
		Addresses  []string    `json:"addresses"`
		Ports      []portView  `json:"ports"`
		Phase      string      `json:"phase"`
		Tenant     string      `json:"tenant,omitempty"`
		Epoch      uint64      `json:"epoch"`
		Generation uint64      `json:"generation"`
		Revision   uint64      `json:"revision"`
		Since      *time.Time  `json:"since,omitempty"`
		DPUs       []proofView `json:"dpus"`
		WaitingFor []string    `json:"waiting_for"`
		Next       string      `json:"next,omitempty"`
	}
	portView struct {
		DPU  string `json:"dpu"`
		Port string `json:"port"`
		VLAN uint32 `json:"vlan"`
	}
	proofView struct {
		DPU        string     `json:"dpu"`
		State      string     `json:"state"`
		Generation uint64     `json:"generation"`
		Boot       uint64     `json:"boot"`
		Sequence   uint64     `json:"sequence"`
		At         *time.Time `json:"at,omitempty"`
	}
	tenantView struct {
		Name  string   `json:"name"`
		ID    uint32   `json:"id"`
		VNI   uint32   `json:"vni"`
		Nodes []string `json:"nodes"`
	}
	dpuView struct {
		Name       string     `json:"name"`
		Rack       string     `json:"rack"`
		Boot       uint64     `json:"boot"`
		HardwareID string     `json:"hardware_id,omitempty"`
		KernelBoot string     `json:"kernel_boot,omitempty"`
		Address    string     `json:"address,omitempty"`
		LeaseAsked *time.Time `json:"lease_asked,omitempty"`
		Reachable  bool       `json:"reachable"`
		Error      string     `json:"error,omitempty"`
		Pending    uint32     `json:"pending"`
	}
	entryView struct {
		Tenant     string `json:"tenant"`
		Node       string `json:"node"`
		Epoch      uint64 `json:"epoch"`
		Generation uint64 `json:"generation"`
		Revision   uint64 `json:"revision"`
		Deleted    bool   `json:"deleted"`
	}
	changeView struct {
		Verb  string `json:"verb"`
		Kind  string `json:"kind"`
		Name  string `json:"name"`
		Field string `json:"field,omitempty"`
		Old   string `json:"old,omitempty"`
		New   string `json:"new,omitempty"`
	}
	statusView struct {
		Site          string            `json:"site"`
		SiteID        string            `json:"site_id"`
		Epoch         uint64            `json:"epoch"`
		Version       string            `json:"version"`
		NodesByPhase  map[string]uint32 `json:"nodes_by_phase"`
		Waiting       []nodeView        `json:"waiting"`
		DPUs          []dpuView         `json:"dpus"`
		GossipMembers uint32            `json:"gossip_members"`
	}
)

func viewTime(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	u := t.AsTime().UTC()
	return &u
}

func viewPhase(p dpudv1.Phase) string {
	if p == dpudv1.Phase_PHASE_UNSPECIFIED {
		return "free"
	}
	return strings.ToLower(strings.TrimPrefix(p.String(), "PHASE_"))
}

func viewState(s dpudv1.State) string {
	if s == dpudv1.State_STATE_UNSPECIFIED {
		return "none"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

func viewNode(n *dpudv1.NodeStatus) nodeView {
	v := nodeView{
		Name: n.GetName(), ID: n.GetId(), Rack: n.GetRack(), MAC: n.GetMac(), Addresses: notNil(n.GetAddresses()),
		Phase: viewPhase(n.GetPhase()), Tenant: n.GetTenant(), Epoch: n.GetEpoch(), Generation: n.GetGeneration(),
		Revision: n.GetRevision(), Since: viewTime(n.GetSince()), WaitingFor: notNil(n.GetWaitingFor()), Next: n.GetNext(),
	}
	v.Ports = views(n.GetPorts(), func(p *dpudv1.NodePort) portView { return portView{p.GetDpu(), p.GetPort(), p.GetVlan()} })
	v.DPUs = views(n.GetDpus(), func(p *dpudv1.DPUProof) proofView {
		return proofView{p.GetDpu(), viewState(p.GetState()), p.GetGeneration(), p.GetBoot(), p.GetSequence(), viewTime(p.GetAt())}
	})
	return v
}

func viewTenant(t *dpudv1.TenantStatus) tenantView {
	return tenantView{t.GetName(), t.GetId(), t.GetVni(), notNil(t.GetNodes())}
}

func viewDPU(d *dpudv1.DPUStatus) dpuView {
	return dpuView{
		Name: d.GetName(), Rack: d.GetRack(), Boot: d.GetBoot(), HardwareID: d.GetHardwareId(), KernelBoot: d.GetKernelBoot(),
		Address: d.GetAddress(), LeaseAsked: viewTime(d.GetLeaseAsked()), Reachable: d.GetReachable(), Error: d.GetError(), Pending: d.GetPending(),
	}
}

func viewEntry(e *dpudv1.EntryStatus) entryView {
	x := e.GetEntry()
	return entryView{e.GetTenant(), e.GetNode(), x.GetEpoch(), x.GetGeneration(), x.GetRevision(), x.GetDeleted()}
}

func viewChange(c *dpudv1.Change) changeView {
	return changeView{c.GetVerb(), c.GetKind(), c.GetName(), c.GetField(), c.GetOld(), c.GetNew()}
}

func viewStatus(s *dpudv1.StatusResponse) statusView {
	v := statusView{
		Site: s.GetSite(), SiteID: s.GetSiteId(), Epoch: s.GetEpoch(), Version: s.GetVersion(), NodesByPhase: s.GetNodesByPhase(),
		Waiting: views(s.GetWaiting(), viewNode), DPUs: views(s.GetDpus(), viewDPU), GossipMembers: s.GetGossipMembers(),
	}
	if v.NodesByPhase == nil {
		v.NodesByPhase = map[string]uint32{}
	}
	return v
}

// views converts a list; it is never nil, so that it prints as [].
func views[P, V any](in []P, view func(P) V) []V {
	out := make([]V, len(in))
	for i, p := range in {
		out[i] = view(p)
	}
	return out
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// confirmed returns the DPUs that have confirmed a state of the node's present generation.
func (n nodeView) confirmed(state string) []string {
	var names []string
	for _, d := range n.DPUs {
		if d.State == state && d.Generation == n.Generation && !slices.Contains(n.WaitingFor, d.DPU) {
			names = append(names, d.DPU)
		}
	}
	return names
}
