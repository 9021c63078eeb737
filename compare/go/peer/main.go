// The Go peers, one program: `peer LIBRARY URL cycle|handover|handover-fast TASKS SECONDS` prints what compare/harness/peers.py
// says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	goredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	warmUp     = 300 * time.Millisecond
	dialing    = 30 * time.Second
	handedOver = "compare:handover"
)

// A library on a connection, or on what its tasks share. It takes a name, and returns what releases it.
type locks interface {
	acquire(name string) (func() error, error)
}

// What a library is connected with. A pool has as many connections as tasks use it.
var libraries = map[string]func(url string, pool int, fast bool) (locks, error){
	"redsync":       redsyncs,
	"rueidislock":   rueidislocks(rueidislock.LockerOption{}),
	"rueidislock-1": rueidislocks(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true}),
}

// What was done in the time that counts.
type sheet struct {
	sync.Mutex
	from, until time.Time
	spans       []time.Duration
	// Who released last, and when it called for that.
	last   int
	lastAt time.Time
}

func (s *sheet) count(began, ended time.Time) bool {
	s.Lock()
	defer s.Unlock()
	return s.counted(began, ended)
}

func (s *sheet) counted(began, ended time.Time) bool {
	// Also what began before: slow operations would be missing otherwise.
	if !ended.Before(s.from) && !ended.After(s.until) {
		s.spans = append(s.spans, ended.Sub(began))
	}
	return ended.Before(s.until)
}

func (s *sheet) handedTo(who int) bool {
	s.Lock()
	defer s.Unlock()
	now := time.Now()
	before, at := s.last, s.lastAt
	s.last, s.lastAt = who, now
	// A waiter that takes the name again at once is no hand-over.
	if at.IsZero() || before == who {
		return now.Before(s.until)
	}
	return s.counted(at, now)
}

type rsync struct {
	*redsync.Redsync
	fast bool
}

func redsyncs(url string, pool int, fast bool) (locks, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	// By itself it has ten for each core.
	options.PoolSize = pool
	options.MinIdleConns = pool
	client := redis.NewClient(options)
	if err := client.Ping(context.Background()).Err(); err != nil {
		return nil, err
	}
	// All are connected before the time begins.
	for until := time.Now().Add(dialing); client.PoolStats().IdleConns < uint32(pool); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return nil, fmt.Errorf("%d of %d connections were made", client.PoolStats().IdleConns, pool)
		}
	}
	return rsync{redsync.New(goredis.NewPool(client)), fast}, nil
}

func (r rsync) acquire(name string) (func() error, error) {
	var options []redsync.Option
	if r.fast {
		options = append(options, redsync.WithTries(math.MaxInt), redsync.WithRetryDelay(time.Millisecond))
	}
	mutex := r.NewMutex(name, options...)
	for {
		err := mutex.Lock()
		// By itself it tries 32 times, 50 to 250 ms apart; then it is asked again.
		if taken := new(redsync.ErrTaken); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			continue
		}
		if err != nil {
			return nil, err
		}
		break
	}
	return func() error {
		ok, err := mutex.Unlock()
		if err == nil && !ok {
			err = errors.New("the name was another's at the release")
		}
		return err
	}, nil
}

type rueidisLocker struct{ rueidislock.Locker }

func rueidislocks(option rueidislock.LockerOption) func(string, int, bool) (locks, error) {
	return func(url string, _ int, _ bool) (locks, error) {
		client, err := rueidis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		option := option
		option.ClientOption = client
		locker, err := rueidislock.NewLocker(option)
		return rueidisLocker{locker}, err
	}
}

func (r rueidisLocker) acquire(name string) (func() error, error) {
	held, release, err := r.WithContext(context.Background(), name)
	if err != nil {
		return nil, err
	}
	return func() error {
		// Only the library ends this before the release.
		lost := held.Err()
		release()
		return lost
	}, nil
}

func cycles(l locks, number int, s *sheet) error {
	name := fmt.Sprintf("compare:cycle:%d", number)
	for began := time.Now(); ; {
		release, err := l.acquire(name)
		if err != nil {
			return err
		}
		if err := release(); err != nil {
			return err
		}
		ended := time.Now()
		if !s.count(began, ended) {
			return nil
		}
		began = ended
	}
}

func turns(l locks, number int, s *sheet) error {
	for {
		release, err := l.acquire(handedOver)
		if err != nil {
			return err
		}
		goesOn := s.handedTo(number)
		if err := release(); err != nil {
			return err
		}
		if !goesOn {
			return nil
		}
	}
}

// The CPU time used so far. Also tells the harness that the timed part begins or ends.
func cpuAt(moment string) (time.Duration, error) {
	fmt.Println(moment)
	var used syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), err
}

func measure(library, url, kind string, tasks int, span time.Duration) (any, error) {
	connect, ok := libraries[library]
	if !ok {
		return nil, fmt.Errorf("%q is no peer of this program", library)
	}
	fast := kind == "handover-fast"
	if fast && library != "redsync" {
		return map[string]string{"not_run": "waiters are woken: there is no retry to set"}, nil
	}
	var each []locks
	for range tasks {
		if kind == "cycle" && len(each) > 0 {
			each = append(each, each[0])
			continue
		}
		pool := 1
		if kind == "cycle" {
			pool = tasks
		}
		one, err := connect(url, pool, fast)
		if err != nil {
			return nil, err
		}
		each = append(each, one)
	}
	from := time.Now().Add(warmUp)
	s := &sheet{from: from, until: from.Add(span)}
	failures := make(chan error, tasks)
	for number, one := range each {
		go func() {
			work := turns
			if kind == "cycle" {
				work = cycles
			}
			failures <- work(one, number, s)
		}()
	}
	time.Sleep(time.Until(s.from))
	before, err := cpuAt("begin")
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Until(s.until))
	after, err := cpuAt("end")
	if err != nil {
		return nil, err
	}
	for {
		select {
		case err := <-failures:
			if err != nil {
				return nil, err
			}
		default:
			return s.figures(span, after-before), nil
		}
	}
}

func (s *sheet) figures(span, cpu time.Duration) any {
	s.Lock()
	defer s.Unlock()
	slices.Sort(s.spans)
	figures := map[string]any{
		"operations": len(s.spans), "seconds": span.Seconds(),
		"p50_us": nil, "p99_us": nil, "client_cpu_us_per_operation": nil,
	}
	if count := len(s.spans); count > 0 {
		part := func(part float64) float64 { return micros(s.spans[int(math.Round(float64(count-1)*part))]) }
		figures["p50_us"], figures["p99_us"] = part(0.5), part(0.99)
		figures["client_cpu_us_per_operation"] = micros(cpu) / float64(count)
	}
	return figures
}

func micros(span time.Duration) float64 { return float64(span) / float64(time.Microsecond) }

func run(words []string) error {
	if len(words) != 5 {
		return errors.New("peer LIBRARY URL cycle|handover|handover-fast TASKS SECONDS")
	}
	tasks, err := strconv.Atoi(words[3])
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(words[4], 64)
	if err != nil {
		return err
	}
	figures, err := measure(words[0], words[1], words[2], tasks, time.Duration(seconds*float64(time.Second)))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(figures)
}

func main() {
	// Waiters that are still there are left where they are.
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
