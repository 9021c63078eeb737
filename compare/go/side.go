// redsync, redislock and rueidislock as the other side of tenure's tests.
//
//	side LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
//	side LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
//	side LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says
//
// LIBRARY rueidislock takes two of three keys, as it ships; rueidislock-one takes one. It asks for each key for
// $TRY_NEXT_AFTER. If it loses what it holds, it makes the file `lost`. A turn is what tenure_testkit::Counter
// calls a visit. If the library reports a lost lock, this program says so and exits 79.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	ttl     = 30 * time.Second
	refused = 75
	lost    = 79
)

// A lock of a library, at one name.
type lock interface {
	// Returns false if it gave up because others held.
	acquire() bool
	// As acquire, without waiting.
	asks() bool
	// Returns why the lock was not held any more, or "".
	release() string
}

type byRedsync struct {
	mutex *redsync.Mutex
}

func ofRedsync(url, name string) lock {
	locks := redsync.New(goredis.NewPool(redis.NewClient(options(url))))
	return &byRedsync{locks.NewMutex(name, redsync.WithExpiry(ttl))}
}

func (lock *byRedsync) acquire() bool { return got(lock.mutex.Lock()) }

func (lock *byRedsync) asks() bool { return got(lock.mutex.TryLock()) }

func (lock *byRedsync) release() string { return lossOf(second(lock.mutex.Unlock())) }

type byRedislock struct {
	locks *redislock.Client
	name  string
	lock  *redislock.Lock
}

func ofRedislock(url, name string) lock {
	return &byRedislock{locks: redislock.New(redis.NewClient(options(url))), name: name}
}

func (lock *byRedislock) obtain(retry redislock.RetryStrategy) bool {
	var err error
	lock.lock, err = lock.locks.Obtain(context.Background(), lock.name, ttl, &redislock.Options{RetryStrategy: retry})
	return got(err)
}

func (lock *byRedislock) acquire() bool {
	return lock.obtain(redislock.LinearBackoff(50 * time.Millisecond))
}

func (lock *byRedislock) asks() bool { return lock.obtain(redislock.NoRetry()) }

func (lock *byRedislock) release() string { return lossOf(lock.lock.Release(context.Background())) }

type byRueidislock struct {
	locker  rueidislock.Locker
	name    string
	held    context.Context
	unlocks context.CancelFunc
	// By itself it waits for ever for an invalidation that it has missed. So it begins anew after a while.
	patience time.Duration
}

func ofRueidislock(majority int32, what string) func(url, name string) lock {
	return func(url, name string) lock {
		option := rueidislock.LockerOption{ClientOption: must(rueidis.ParseURL(url)), KeyMajority: majority}
		if asks := os.Getenv("TRY_NEXT_AFTER"); asks != "" {
			option.TryNextAfter = must(time.ParseDuration(asks))
		} else if what != "count" {
			// Who asks once has an answer, also from a slow server. Of a key that is late it never asks again.
			option.TryNextAfter = 10 * time.Second
			option.KeyValidity = ttl
		}
		patience := time.Hour
		if what == "count" {
			patience = 3 * time.Second
		}
		return &byRueidislock{locker: must(rueidislock.NewLocker(option)), name: name, patience: patience}
	}
}

func (lock *byRueidislock) acquire() bool {
	ctx, cancel := context.WithCancel(context.Background())
	patience := time.AfterFunc(lock.patience, cancel)
	var err error
	lock.held, lock.unlocks, err = lock.locker.WithContext(ctx, lock.name)
	if err == nil && !patience.Stop() {
		lock.unlocks()
		return false
	}
	return got(err)
}

func (lock *byRueidislock) asks() bool {
	var err error
	lock.held, lock.unlocks, err = lock.locker.TryWithContext(context.Background(), lock.name)
	return got(err)
}

func (lock *byRueidislock) release() string {
	defer lock.unlocks()
	if lock.held.Err() != nil {
		return "its context is done"
	}
	return ""
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func second[T any](_ T, err error) error { return err }

func options(url string) *redis.Options { return must(redis.ParseURL(url)) }

// Whether there was no error. One that does not say that others hold ends the program.
func got(err error) bool {
	var taken *redsync.ErrTaken
	others := errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, redislock.ErrNotObtained) ||
		errors.Is(err, rueidislock.ErrNotLocked) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err != nil && !others {
		panic(err)
	}
	return err == nil
}

// What the error of a release says.
func lossOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func appendTo(line string) {
	log := must(os.OpenFile("log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))
	must(log.WriteString(line + "\n"))
	log.Close()
}

func visit(id string) {
	appendTo("enter " + id + " -")
	read := must(strconv.ParseInt(strings.TrimSpace(string(must(os.ReadFile("counter")))), 10, 64))
	time.Sleep(rand.N(5 * time.Millisecond))
	file := must(os.OpenFile("counter", os.O_WRONLY, 0))
	must(fmt.Fprintf(file, "%020d", read+1))
	file.Close()
	appendTo("leave " + id)
}

func leave(code int, word string) {
	fmt.Println(word)
	os.Exit(code)
}

func giveUp(lock lock) {
	if loss := lock.release(); loss != "" {
		leave(lost, "lost: "+loss)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func count(library string, lock lock) {
	turns := 0
	for !exists("enough") {
		// By itself each gives up after a while.
		if !lock.acquire() {
			continue
		}
		visit(fmt.Sprintf("%s.%d.%d", library, os.Getpid(), turns))
		turns++
		giveUp(lock)
	}
	leave(0, strconv.Itoa(turns))
}

func hold(lock lock) {
	for !lock.acquire() {
	}
	must(0, os.WriteFile("held", []byte("held\n"), 0o644))
	if lock, is := lock.(*byRueidislock); is {
		go func() {
			<-lock.held.Done()
			must(0, os.WriteFile("lost", []byte("lost\n"), 0o644))
		}()
	}
	must(io.ReadAll(os.Stdin))
	giveUp(lock)
	leave(0, "released")
}

func main() {
	library, url, name, what := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	lock := map[string]func(url, name string) lock{
		"redsync":         ofRedsync,
		"redislock":       ofRedislock,
		"rueidislock":     ofRueidislock(2, what),
		"rueidislock-one": ofRueidislock(1, what),
	}[library](url, name)
	switch what {
	case "count":
		count(library, lock)
	case "hold":
		hold(lock)
	case "try":
		if !lock.asks() {
			leave(refused, "refused")
		}
		giveUp(lock)
		leave(0, "released")
	}
	leave(64, "what is "+what+"?")
}
