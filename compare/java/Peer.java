import com.sun.management.OperatingSystemMXBean;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson: {@code Peer LOCK URL cycle|handover|handover-fast TASKS SECONDS} prints what compare/harness/peers.py says.
 *
 * <p>LOCK is redisson, an RLock, or redisson-fenced, an RFencedLock. A task is a thread. In a cycle all share one client; in a
 * hand-over each has a client, as waiters in different processes have.
 */
public final class Peer {
    /** Its code is compiled while it runs, on the core on which it runs. */
    private static final double WARM_UP_S = 10;
    private static final double WARM_UP_PART = 5;

    private final boolean fenced;
    private final long from;
    private final long until;
    private long[] spans = new long[1 << 16];
    private int count;
    /** Who released last, and when it called for that. */
    private int last = -1;
    private long lastAt;

    private Peer(boolean fenced, long from, long until) {
        this.fenced = fenced;
        this.from = from;
        this.until = until;
    }

    private synchronized boolean count(long began, long ended) {
        // Also what began before: slow operations would be missing otherwise.
        if (ended - from >= 0 && ended - until <= 0) {
            if (count == spans.length) {
                spans = Arrays.copyOf(spans, 2 * count);
            }
            spans[count++] = ended - began;
        }
        return ended - until < 0;
    }

    private synchronized boolean handedTo(int who) {
        long now = System.nanoTime();
        int before = last;
        long at = lastAt;
        last = who;
        lastAt = now;
        // A waiter that takes the name again at once is no hand-over.
        return before < 0 || before == who ? now - until < 0 : count(at, now);
    }

    private void cycles(RedissonClient client, int number) {
        String name = "compare:cycle:" + number;
        long began = System.nanoTime();
        while (true) {
            RLock lock;
            if (fenced) {
                RFencedLock one = client.getFencedLock(name);
                one.lockAndGetToken();
                lock = one;
            } else {
                lock = client.getLock(name);
                lock.lock();
            }
            lock.unlock();
            long ended = System.nanoTime();
            if (!count(began, ended)) {
                return;
            }
            began = ended;
        }
    }

    private void turns(RedissonClient client, int number) {
        RLock lock = client.getLock("compare:handover");
        boolean goesOn = true;
        while (goesOn) {
            lock.lock();
            goesOn = handedTo(number);
            lock.unlock();
        }
    }

    /** The CPU time used so far, in ns. Also tells the harness that the timed part begins or ends. */
    private static long cpuAt(String moment) {
        System.out.println(moment);
        System.out.flush();
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private synchronized String figures(double seconds, long cpu) {
        long[] sorted = Arrays.copyOf(spans, count);
        Arrays.sort(sorted);
        String form = "{\"operations\": %d, \"seconds\": %f, \"p50_us\": %s, \"p99_us\": %s, \"client_cpu_us_per_operation\": %s}";
        Double each = count == 0 ? null : cpu / 1e3 / count;
        return String.format(Locale.ROOT, form, count, seconds, part(sorted, 0.5), part(sorted, 0.99), each);
    }

    private static Double part(long[] sorted, double part) {
        return sorted.length == 0 ? null : sorted[(int) Math.round((sorted.length - 1) * part)] / 1e3;
    }

    private static void sleepUntil(long time) throws InterruptedException {
        long left = time - System.nanoTime();
        if (left > 0) {
            Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
        }
    }

    private static void leave(int code, String word) {
        System.out.println(word);
        System.out.flush();
        // Waiters that are still there are left where they are.
        Runtime.getRuntime().halt(code);
    }

    public static void main(String[] words) throws Exception {
        boolean fenced = words[0].equals("redisson-fenced");
        String url = words[1];
        boolean shared = words[2].equals("cycle");
        int tasks = Integer.parseInt(words[3]);
        double seconds = Double.parseDouble(words[4]);
        if (words[2].equals("handover-fast")) {
            leave(0, "{\"not_run\": \"waiters are woken: there is no retry to set\"}");
        }
        if (fenced && !shared) {
            leave(0, "{\"not_run\": \"waits as redisson\"}");
        }
        // By itself it has 32, which is slower here.
        int netty = Runtime.getRuntime().availableProcessors();
        RedissonClient[] clients = new RedissonClient[tasks];
        // As many clients as there are waiters would have as many pools of threads.
        EventLoopGroup sockets = shared ? null : new MultiThreadIoEventLoopGroup(netty, NioIoHandler.newFactory());
        ExecutorService callbacks = shared ? null : Executors.newFixedThreadPool(16);
        for (int number = 0; number < tasks; number += 1) {
            if (shared && number > 0) {
                clients[number] = clients[0];
                continue;
            }
            Config config = new Config();
            var server = config.useSingleServer().setAddress(url);
            if (shared) {
                config.setNettyThreads(netty);
            } else {
                server.setConnectionPoolSize(1).setConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(1);
                config.setEventLoopGroup(sockets).setExecutor(callbacks);
            }
            clients[number] = Redisson.create(config);
        }
        long from = System.nanoTime() + (long) (Math.min(WARM_UP_S, WARM_UP_PART * seconds) * 1e9);
        Peer sheet = new Peer(fenced, from, from + (long) (seconds * 1e9));
        for (int task = 0; task < tasks; task += 1) {
            int number = task;
            Thread thread = new Thread(() -> {
                if (shared) {
                    sheet.cycles(clients[number], number);
                } else {
                    sheet.turns(clients[number], number);
                }
            });
            thread.setDaemon(true);
            thread.setUncaughtExceptionHandler((which, failure) -> {
                System.err.println(failure);
                Runtime.getRuntime().halt(1);
            });
            thread.start();
        }
        sleepUntil(from);
        long before = cpuAt("begin");
        sleepUntil(sheet.until);
        long cpu = cpuAt("end") - before;
        leave(0, sheet.figures(seconds, cpu));
    }
}
