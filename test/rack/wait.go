package rack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// ErrDeadline is what [Until] returns when the condition did not come true.
var ErrDeadline = errors.New("deadline passed")

// Until asks for a condition every few milliseconds until it is true, fails, or the deadline passes. The
// last error of a condition that says (false, err) is part of what is returned.
func Until(deadline time.Duration, what string, condition func() (bool, error)) error {
	end := time.Now().Add(deadline)
	for {
		ok, err := condition()
		if ok {
			return err
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("wait %s for %s: %w", deadline, what, ErrDeadline), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Get asks for a URL from inside the namespace and returns its body; any status but 200 is an error.
func (n *Namespace) Get(url string) (string, error) {
	client := http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true},
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return string(b), fmt.Errorf("get %s: %s: %s", url, resp.Status, b)
	}
	return string(b), nil
}
