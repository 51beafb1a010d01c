import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Receives a slot's changes by Debezium's embedded engine, as JSON, and throws them away.
 *
 * Usage: Engine EVENTS SECONDS < connector.properties. It ends once it has so many changes of rows, and prints how many
 * seconds that took from the engine's start, and how many there were: more, if more came within a second. It fails if
 * they have not come within so many seconds.
 */
public final class Engine {
    public static void main(String[] arguments) throws Exception {
        long wanted = Long.parseLong(arguments[0]);
        long patienceSeconds = Long.parseLong(arguments[1]);
        Properties properties = new Properties();
        properties.load(System.in);
        AtomicLong changes = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch over = new CountDownLatch(1);
        long began = System.nanoTime();
        long[] ended = new long[1];
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                        .using(properties)
                        .notifying(
                                (List<ChangeEvent<String, String>> records,
                                        DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                                    for (ChangeEvent<String, String> record : records) {
                                        // a tombstone follows each delete, unless it is switched off
                                        if (record.value() != null && changes.incrementAndGet() == wanted) {
                                            ended[0] = System.nanoTime();
                                            over.countDown();
                                        }
                                        committer.markProcessed(record);
                                    }
                                    committer.markBatchFinished();
                                })
                        .using(
                                (success, message, error) -> {
                                    if (!success) {
                                        failure.set(error == null ? new IllegalStateException(message) : error);
                                        over.countDown();
                                    }
                                })
                        .build();
        Thread runs = new Thread(engine, "engine");
        runs.setDaemon(true);
        runs.start();
        boolean came = over.await(patienceSeconds, TimeUnit.SECONDS);
        if (failure.get() != null || !came) {
            if (failure.get() != null) {
                failure.get().printStackTrace();
            }
            System.err.println("Debezium's engine has " + changes.get() + " of " + wanted + " changes");
            System.exit(1);
        }
        Thread.sleep(1000);
        System.out.println((ended[0] - began) / 1e9 + " " + changes.get());
        System.out.flush();
        engine.close();
        System.exit(0);
    }
}
