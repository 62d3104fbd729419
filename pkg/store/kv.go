package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KV is the part of a store under one prefix; keys are without it. Its methods are safe for concurrent use.
type KV struct {
	client *clientv3.Client
	prefix string
}

// Prefix returns the keys that start with p, which should end with a slash.
func (s *Store) Prefix(p string) *KV { return &KV{client: s.client, prefix: p} }

// KeyValue is a key as the store held it.
type KeyValue struct {
	Key string
	// Value is nil when the key is absent.
	Value []byte
	// Revision of the store that put this value; for an absent key, one at which it was absent.
	Revision int64
}

// Txn commits only if every key of If has the revision given (0: the key is absent).
type Txn struct {
	If     map[string]int64
	Put    map[string][]byte
	Delete []string
}

// Result of a transaction.
type Result struct {
	// OK says whether it was committed.
	OK bool
	// Revision of the store at which it was, or was refused.
	Revision int64
	// Found holds the keys of If as they are, when it was refused.
	Found []KeyValue
}

// List returns the keys under a further prefix that were put after the store's revision since (0: all), and
// the revision of the store at which this holds. It sees everything that was committed before it began.
func (k *KV) List(ctx context.Context, under string, since int64) ([]KeyValue, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithPrefix()}
	if since > 0 {
		opts = append(opts, clientv3.WithMinModRev(since+1))
	}
	res, err := k.client.Get(ctx, k.prefix+under, opts...)
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", k.prefix+under, requestError(err))
	}
	return k.strip(res.Kvs), res.Header.Revision, nil
}

func (k *KV) strip(kvs []*mvccpb.KeyValue) []KeyValue {
	list := make([]KeyValue, len(kvs))
	for i, kv := range kvs {
		list[i] = KeyValue{Key: strings.TrimPrefix(string(kv.Key), k.prefix), Value: kv.Value, Revision: kv.ModRevision}
		if list[i].Value == nil {
			list[i].Value = []byte{}
		}
	}
	return list
}

// Commit carries out a transaction. After an error it is unknown whether it was.
func (k *KV) Commit(ctx context.Context, t Txn) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+time.Duration(len(t.If)+len(t.Put)+len(t.Delete))*timePerOp)
	defer cancel()
	var conditions []clientv3.Cmp
	var then, otherwise []clientv3.Op
	keys := slices.Sorted(maps.Keys(t.If))
	for _, key := range keys {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(k.prefix+key), "=", t.If[key]))
		otherwise = append(otherwise, clientv3.OpGet(k.prefix+key))
	}
	for _, key := range slices.Sorted(maps.Keys(t.Put)) {
		then = append(then, clientv3.OpPut(k.prefix+key, string(t.Put[key])))
	}
	for _, key := range t.Delete {
		then = append(then, clientv3.OpDelete(k.prefix+key))
	}
	res, err := k.client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return Result{}, fmt.Errorf("commit under %s: %w", k.prefix, requestError(err))
	}
	r := Result{OK: res.Succeeded, Revision: res.Header.Revision}
	if r.OK {
		return r, nil
	}
	for i, key := range keys {
		if found := k.strip(res.Responses[i].GetResponseRange().Kvs); len(found) > 0 {
			r.Found = append(r.Found, found[0])
		} else {
			r.Found = append(r.Found, KeyValue{Key: key, Revision: r.Revision})
		}
	}
	return r, nil
}

// Batch is news from a watch, in the order of the store's revisions.
type Batch struct {
	// Changes to keys; a deleted key has a nil value and the revision of its deletion.
	Changes []KeyValue
	// Revision up to which nothing is missing.
	Revision int64
	// All: Changes are all keys there are. The store had forgotten what came before, so that keys which are not
	// among them may have been deleted unseen.
	All bool
	// Err says why there is no news for now; the watch goes on trying.
	Err error
}

// Watch sends every change after a revision until ctx ends, then closes the channel. It waits for its
// receiver, who may be slow: when the store has compacted what is next, the watch lists everything (Batch.All).
func (k *KV) Watch(ctx context.Context, after int64) <-chan Batch {
	ch := make(chan Batch)
	go func() {
		defer close(ch)
		for wait := minWait; ctx.Err() == nil; wait = min(2*wait, maxWait) {
			err := k.follow(ctx, ch, &after)
			if errors.Is(err, rpctypes.ErrCompacted) {
				err = k.listAll(ctx, ch, &after)
			}
			if err == nil {
				wait = minWait
				continue
			}
			if !send(ctx, ch, Batch{Revision: after, Err: fmt.Errorf("watch %s: %w", k.prefix, requestError(err))}) {
				return
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}()
	return ch
}

// Waits between attempts to watch again.
const (
	minWait = 50 * time.Millisecond
	maxWait = 2 * time.Second
)

// follow watches until something fails.
func (k *KV) follow(ctx context.Context, ch chan<- Batch, after *int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for res := range k.client.Watch(ctx, k.prefix, clientv3.WithPrefix(), clientv3.WithRev(*after+1)) {
		if err := res.Err(); err != nil {
			return err
		}
		if len(res.Events) == 0 {
			continue
		}
		b := Batch{Revision: res.Header.Revision}
		for _, e := range res.Events {
			kv := KeyValue{Key: strings.TrimPrefix(string(e.Kv.Key), k.prefix), Revision: e.Kv.ModRevision}
			if e.Type == mvccpb.PUT {
				kv.Value = append([]byte{}, e.Kv.Value...)
			}
			b.Changes = append(b.Changes, kv)
		}
		// The header may be ahead of the events; only what was sent is complete.
		b.Revision = b.Changes[len(b.Changes)-1].Revision
		if !send(ctx, ch, b) {
			return nil
		}
		*after = b.Revision
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("the watch ended")
}

func (k *KV) listAll(ctx context.Context, ch chan<- Batch, after *int64) error {
	all, revision, err := k.List(ctx, "", 0)
	if err != nil {
		return err
	}
	if send(ctx, ch, Batch{Changes: all, Revision: revision, All: true}) {
		*after = revision
	}
	return nil
}

func send(ctx context.Context, ch chan<- Batch, b Batch) bool {
	select {
	case ch <- b:
		return true
	case <-ctx.Done():
		return false
	}
}
