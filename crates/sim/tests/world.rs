//! The virtual world as tasks see it.

use extant_rt::{Class, Cpu, Flag, Nanos, Rt, RtError, RwLock, WaitConfig, WaitKey, WaitTable};
use extant_sim::{Machine, Preemption, Sim, SimConfig};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

const MS: u64 = 1_000_000;

fn free(processors: usize, preemption: Preemption) -> Sim {
    Sim::new(Machine::free(processors, preemption), 1)
}

/// Charges `spans` milliseconds, yielding after each.
async fn work(rt: Rt, spans: impl IntoIterator<Item = u64>) -> Nanos {
    for span in spans {
        rt.charge(Cpu(Nanos::from_millis(span)));
        rt.yield_now().await;
    }
    rt.now()
}

#[test]
fn time_passes_only_as_it_is_charged_or_slept_away() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let end = rt.block_on(async {
        assert_eq!(rt.now(), Nanos::ZERO);
        rt.charge(Cpu(Nanos(30)));
        assert_eq!(rt.now(), Nanos(30));
        rt.sleep_until(Nanos::from_secs(3600)).await;
        rt.now()
    });
    assert_eq!(end, Ok(Nanos::from_secs(3600)));
    assert_eq!(rt.now(), Nanos::from_secs(3600), "the next run goes on where this one ended");
}

#[test]
fn two_tasks_share_one_processor_but_not_two() {
    for (processors, expected) in [(1, 20), (2, 10), (3, 10)] {
        let sim = free(processors, Preemption::None);
        let rt = sim.rt();
        let ends = rt.block_on(async {
            let a = rt.spawn("a", Class::Normal, work(rt.clone(), [10]));
            let b = rt.spawn("b", Class::Normal, work(rt.clone(), [10]));
            a.await.unwrap().max(b.await.unwrap())
        });
        assert_eq!(ends, Ok(Nanos::from_millis(expected)), "{processors} processors");
        let busy: u64 = sim.stats().busy.iter().map(|busy| busy.0).sum();
        assert_eq!(busy, 20 * MS, "{processors} processors");
    }
}

#[test]
fn real_time_goes_before_normal_before_idle_and_equals_in_order() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let task = |name: &'static str, class| {
        let order = order.clone();
        rt.spawn(name, class, async move { order.lock().push(name) })
    };
    rt.block_on(async {
        let tasks = [
            task("idle", Class::Idle),
            task("normal 1", Class::Normal),
            task("normal 2", Class::Normal),
            task("rt 10 a", Class::RealTime(10)),
            task("rt 90", Class::RealTime(90)),
            task("rt 10 b", Class::RealTime(10)),
        ];
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
    assert_eq!(*order.lock(), ["rt 90", "rt 10 a", "rt 10 b", "normal 1", "normal 2", "idle"]);
}

/// Lateness of an alarm at 5 ms next to a task that works for 70 ms, with a preemption point every
/// 7 ms.
fn lateness(preemption: Preemption, offer: &'static str) -> Nanos {
    let sim = free(1, preemption);
    let rt = sim.rt();
    let alarm = {
        let rt = rt.clone();
        rt.clone().spawn("alarm", Class::RealTime(80), async move {
            let at = Nanos::from_millis(5);
            rt.sleep_until(at).await;
            rt.now() - at
        })
    };
    let hog = {
        let rt = rt.clone();
        rt.clone().spawn("hog", Class::Normal, async move {
            for _ in 0..10 {
                rt.charge(Cpu(Nanos::from_millis(7)));
                match offer {
                    "might_sleep" => rt.might_sleep().await,
                    "resched" => rt.resched().await,
                    _ => {}
                }
            }
            rt.now()
        })
    };
    let (late, done) = rt.block_on(async { (alarm.await.unwrap(), hog.await.unwrap()) }).unwrap();
    assert_eq!(done, Nanos::from_millis(70), "nobody's work is lost");
    late
}

#[test]
fn each_preemption_mode_gives_way_where_it_should() {
    let rest = Nanos::from_millis(65);
    let chunk = Nanos::from_millis(2);
    assert_eq!(lateness(Preemption::None, "never"), rest);
    assert_eq!(lateness(Preemption::None, "might_sleep"), rest);
    assert_eq!(lateness(Preemption::None, "resched"), chunk);
    assert_eq!(lateness(Preemption::Voluntary, "never"), rest);
    assert_eq!(lateness(Preemption::Voluntary, "might_sleep"), chunk);
    assert_eq!(lateness(Preemption::Voluntary, "resched"), chunk);
    for offer in ["never", "might_sleep", "resched"] {
        assert_eq!(lateness(Preemption::Full, offer), Nanos::ZERO);
    }
}

#[test]
fn under_full_preemption_normal_tasks_take_turns_within_a_long_stretch() {
    let ends = |preemption| {
        let sim = free(1, preemption);
        let rt = sim.rt();
        let long = rt.spawn("long", Class::Normal, work(rt.clone(), [350]));
        let rt2 = rt.clone();
        let short = rt.spawn("short", Class::Normal, async move {
            rt2.charge(Cpu(Nanos::from_millis(10)));
            rt2.now()
        });
        rt.block_on(async { (long.await.unwrap(), short.await.unwrap()) }).unwrap()
    };
    // A free machine's time slice is 100 ms.
    assert_eq!(ends(Preemption::None), (Nanos::from_millis(360), Nanos::from_millis(360)));
    assert_eq!(ends(Preemption::Full), (Nanos::from_millis(360), Nanos::from_millis(110)));
}

#[test]
fn a_budget_bounds_how_long_others_wait() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let alarm = {
        let rt = rt.clone();
        rt.clone().spawn("alarm", Class::RealTime(80), async move {
            let mut worst = Nanos::ZERO;
            for n in 1..=20 {
                let at = Nanos::from_millis(n);
                rt.sleep_until(at).await;
                worst = worst.max(rt.now() - at);
            }
            worst
        })
    };
    let worst = rt.block_on(async {
        let mut budget = rt.budget(Nanos::from_micros(100));
        for _ in 0..30_000 {
            rt.charge(Cpu(Nanos(2_300)));
            budget.resched().await;
        }
        alarm.await.unwrap()
    });
    let worst = worst.unwrap();
    assert!(worst > Nanos::ZERO && worst <= Nanos(100_000 + 2_300), "{worst:?}");
}

fn costly() -> Machine {
    Machine::load(std::path::Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../machines/turion-2010.toml"
    )))
    .unwrap()
}

#[test]
fn switches_wakes_and_interrupts_cost_what_the_model_says() {
    let machine = costly();
    let p = machine.processors.clone();
    let sim = Sim::new(machine, 1);
    let rt = sim.rt();
    let late = rt.block_on(async {
        let at = Nanos::from_millis(1);
        rt.sleep_until(at).await;
        let alone = rt.now() - at;
        let rt2 = rt.clone();
        let child = rt.spawn("child", Class::Normal, async move { rt2.now() });
        let spawned_at = rt.now();
        (alone, child.await.unwrap() - spawned_at)
    });
    let (alone, child) = late.unwrap();
    // The processor is idle and last ran this task, so there is no context switch.
    assert_eq!(alone, p.timer_interrupt.saturating_add(p.idle_exit));
    assert_eq!(child, p.context_switch, "the processor is busy with us until we wait, then switches");
}

#[test]
fn the_time_of_an_interrupt_counts_once_on_an_idle_processor() {
    let machine = costly();
    let p = machine.processors.clone();
    let sim = Sim::new(machine, 1);
    let rt = sim.rt();
    let before = Nanos::from_millis(1);
    rt.block_on(async { rt.sleep_until(before).await }).unwrap();
    // One processor did all the work: the first switch to the task, and the end of its sleep.
    let first = p.idle_exit.saturating_add(p.context_switch);
    let busy = sim.stats().busy.into_iter().fold(Nanos::ZERO, Nanos::saturating_add);
    assert_eq!(busy, first.saturating_add(p.timer_interrupt).saturating_add(p.idle_exit));
}

#[test]
fn a_task_that_an_alarm_spawns_begins_when_its_interrupt_has_ended() {
    struct Spawns(Rt, Arc<AtomicU64>);
    impl Wake for Spawns {
        fn wake(self: Arc<Self>) {
            let (rt, at) = (self.0.clone(), self.1.clone());
            let task = async move { at.store(rt.now().0, SeqCst) };
            drop(self.0.spawn("worker", Class::Normal, task));
        }
    }
    let machine = costly();
    let p = machine.processors.clone();
    let sim = Sim::new(machine, 1);
    let (rt, at) = (sim.rt(), Arc::new(AtomicU64::new(0)));
    let waker = Waker::from(Arc::new(Spawns(rt.clone(), at.clone())));
    let rings = Nanos::from_millis(1);
    rt.block_on(async {
        let _alarm = rt.alarm(rings, &waker);
        rt.sleep_until(Nanos::from_millis(2)).await;
    })
    .unwrap();
    let late = Nanos(at.load(SeqCst)) - rings;
    assert_eq!(late, p.timer_interrupt.saturating_add(p.idle_exit).saturating_add(p.context_switch));
}

#[test]
fn an_alarm_of_the_past_rings_at_once_and_one_of_before_a_shutdown_disarms_no_other() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let rung = Arc::new(AtomicU32::new(0));
    struct Counts(Arc<AtomicU32>);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let waker = Waker::from(Arc::new(Counts(rung.clone())));
    let old = rt.alarm(Nanos::from_secs(100), &waker);
    assert!(rt.shutdown(Nanos::ZERO).in_flight.is_empty());
    rt.block_on(async {
        let _new = rt.alarm(Nanos::from_millis(3), &waker);
        drop(old);
        rt.sleep_until(Nanos::from_millis(5)).await;
        assert_eq!(rung.load(SeqCst), 1, "the new alarm alone");
        let _past = rt.alarm(Nanos::from_millis(1), &waker);
        rt.sleep_until(Nanos::from_millis(7)).await;
    })
    .unwrap();
    assert_eq!(rung.load(SeqCst), 2);
}

#[test]
fn a_lock_that_is_given_at_a_shutdown_and_not_used_is_taken_back_afterwards() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let lock = RwLock::new(&Arc::new(WaitTable::new(rt, WaitConfig::new("test"))));
    let mut none = Context::from_waker(Waker::noop());
    let first = lock.try_write().expect("free");
    let (mut kept, mut waits) = (Box::pin(lock.write()), Box::pin(lock.write()));
    assert!(kept.as_mut().poll(&mut none).is_pending() && waits.as_mut().poll(&mut none).is_pending());
    drop(first);
    // The shutdown loses the alarm of the waiter that was given the lock.
    assert!(rt.shutdown(Nanos::ZERO).in_flight.is_empty());
    drop(rt.block_on(waits).expect("the other does not come"));
    drop(rt.block_on(kept).expect("late, but free"));
}

#[test]
fn a_waiter_that_is_always_slow_gets_the_lock_in_the_end() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let table = WaitTable::new(rt, WaitConfig::new("test")).with_patience(Nanos(MS / 5));
    let lock = RwLock::new(&Arc::new(table));
    let mut none = Context::from_waker(Waker::noop());
    for is_writer in [true, false] {
        let mut held = Some(lock.try_write().expect("free"));
        let mut slow = Box::pin(async {
            match is_writer {
                true => drop(lock.write().await),
                false => drop(lock.read().await),
            }
        });
        assert!(slow.as_mut().poll(&mut none).is_pending());
        let mut losses = 0;
        loop {
            // A fast task takes the lock again as soon as it can.
            let mut fast = Box::pin(lock.write());
            assert!(fast.as_mut().poll(&mut none).is_pending());
            drop(held.take());
            rt.block_on(rt.sleep(Nanos(2 * MS))).unwrap();
            if let Poll::Ready(guard) = fast.as_mut().poll(&mut none) {
                held = Some(guard);
            }
            if slow.as_mut().poll(&mut none).is_ready() {
                assert!(held.is_none() && fast.as_mut().poll(&mut none).is_ready());
                break;
            }
            losses += 1;
            assert!(losses < 100, "it is overtaken for ever");
        }
        // The patience is a tenth of what the task needs at first, and doubles with each loss.
        assert_eq!(losses, 4);
        assert!(lock.try_write().is_some());
    }
}

#[test]
fn a_world_that_is_dropped_drops_what_its_alarms_hold() {
    struct Holds(Rt);
    impl Wake for Holds {
        fn wake(self: Arc<Self>) {}
    }
    let sim = free(1, Preemption::None);
    let holds = Arc::new(Holds(sim.rt().clone()));
    let held = Arc::downgrade(&holds);
    // Arms an alarm when a shutdown drops it, like a queue whose last bio ends then.
    struct Arms(Option<Arc<Holds>>);
    impl Drop for Arms {
        fn drop(&mut self) {
            let holds = self.0.take().expect("dropped once");
            let rt = holds.0.clone();
            std::mem::forget(rt.alarm(Nanos::from_secs(1), &Waker::from(holds)));
        }
    }
    let arms = Arms(Some(holds));
    drop(sim.rt().spawn("never ends", Class::Normal, async move {
        let _arms = arms;
        std::future::pending::<()>().await;
    }));
    drop(sim);
    assert!(held.upgrade().is_none(), "the world and its alarm keep each other");
}

#[test]
fn an_alarm_is_an_interrupt_whose_work_takes_time() {
    struct Works(Rt, AtomicU32);
    impl Wake for Works {
        fn wake(self: Arc<Self>) {
            self.0.charge(Cpu(Nanos::from_millis(3)));
            self.1.fetch_add(1, SeqCst);
        }
    }
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let works = Arc::new(Works(rt.clone(), AtomicU32::new(0)));
    let waker = Waker::from(works.clone());
    rt.block_on(async {
        let rings = rt.alarm(Nanos::from_millis(10), &waker);
        drop(rt.alarm(Nanos::from_millis(20), &waker));
        rt.sleep_until(Nanos::from_millis(30)).await;
        drop(rings);
    })
    .unwrap();
    assert_eq!(works.1.load(SeqCst), 1, "times that it rang");
    assert_eq!(sim.stats().interrupts, Nanos::from_millis(3));
    assert_eq!(sim.stats().busy, [Nanos::from_millis(3)]);
}

#[test]
fn a_deadlock_is_printed_with_who_waits_on_what() {
    const LOCKED: Flag = Flag::new(0, 1);
    let sim = free(2, Preemption::None);
    let rt = sim.rt();
    let table = Arc::new(WaitTable::new(rt, WaitConfig::new("forks")));
    let forks: Arc<[AtomicU32; 2]> = Arc::default();
    let philosopher = |first: usize, second: usize| {
        let (rt, table, forks) = (rt.clone(), table.clone(), forks.clone());
        async move {
            table.lock(first as u64, &forks[first], LOCKED).await;
            rt.sleep(Nanos(7)).await;
            table.lock(second as u64, &forks[second], LOCKED).await;
        }
    };
    let error = rt.block_on(async {
        let hegel = rt.spawn("Hegel", Class::Normal, philosopher(0, 1));
        drop(rt.spawn("Kant", Class::Normal, philosopher(1, 0)));
        drop(rt.spawn("Hume", Class::Normal, std::future::pending::<()>()));
        let table = table.clone();
        drop(rt.spawn("Mill", Class::Normal, async move {
            table.wait_until(WaitKey::new(0xbeef), || false).await
        }));
        hegel.await
    });
    let Err(RtError::Deadlock { at, waiters }) = error else { panic!("{error:?}") };
    assert_eq!(at, Nanos(7));
    let expected = [
        "  Hegel waits on the lock 0x1 of forks",
        "  Kant waits on the lock 0x0 of forks",
        "  Hume waits on something that it did not name",
        "  Mill waits on key 0xbeef of forks",
        "  main waits on the end of task Hegel",
    ];
    let mut lines: Vec<_> = waiters.lines().collect();
    assert_eq!(lines.remove(0), expected[4], "the oldest task first");
    assert_eq!(lines, expected[..4]);
    // The world is still usable.
    assert_eq!(rt.block_on(async { 3 }), Ok(3));
}

#[test]
fn a_panic_ends_one_task_and_is_reported_with_its_name() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let (bad, good) = rt
        .block_on(async {
            let bad = rt.spawn("bad", Class::Normal, async { panic!("spilt milk") });
            let good = rt.spawn("good", Class::Normal, work(rt.clone(), [1]));
            (bad.await, good.await)
        })
        .unwrap();
    let named = |name: &str| RtError::Panicked { name: name.into(), message: "spilt milk".into() };
    assert_eq!(bad, Err::<(), _>(named("bad")));
    assert_eq!(good, Ok(Nanos::from_millis(1)));
    assert_eq!(rt.block_on(async { panic!("spilt milk") }), Err::<(), _>(named("main")));
    let report = rt.shutdown(Nanos::ZERO);
    assert_eq!(report.panicked, [("bad".into(), "spilt milk".into()), ("main".into(), "spilt milk".into())]);
}

#[test]
fn a_task_that_never_yields_is_named() {
    let sim = free(2, Preemption::None);
    let rt = sim.rt();
    let rt2 = rt.clone();
    let error = rt.block_on(async {
        rt.spawn("spinner", Class::Normal, async move {
            loop {
                rt2.charge(Cpu(Nanos::from_millis(1)));
            }
        })
        .await
    });
    let expected = RtError::NeverYields {
        name: "spinner".into(),
        at: Nanos::ZERO,
        used: Nanos::from_millis(10_001),
        limit: Nanos::from_secs(10),
    };
    assert_eq!(error, Err(expected));
}

#[test]
fn a_task_that_offers_its_processor_is_not_one_that_never_yields() {
    for preemption in Preemption::ALL {
        let sim = free(1, preemption);
        let rt = sim.rt();
        let ended = rt.block_on(async {
            for _ in 0..25 {
                rt.charge(Cpu(Nanos::from_secs(1)));
                rt.resched().await;
            }
            rt.now()
        });
        assert_eq!(ended, Ok(Nanos::from_secs(25)), "{preemption}");
    }
}

#[test]
fn an_interrupt_that_takes_too_long_is_an_error_and_one_that_panics_panics() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let rt2 = rt.clone();
    sim.call_at(Nanos::from_millis(1), move || rt2.charge(Cpu(Nanos::from_secs(60))));
    let error = rt.block_on(rt.sleep(Nanos::from_millis(2)));
    let expected = RtError::NeverYields {
        name: "(interrupt)".into(),
        at: Nanos::from_millis(1),
        used: Nanos::from_secs(60),
        limit: Nanos::from_secs(10),
    };
    assert_eq!(error, Err(expected));
    sim.call_at(Nanos::from_millis(3), || panic!("burnt out"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rt.block_on(rt.sleep(Nanos::from_millis(9)))
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"burnt out"));
    assert_eq!(rt.block_on(async { 7 }), Ok(7), "the world goes on");
}

#[test]
fn a_task_that_spins_on_the_clock_is_named() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let error = rt.block_on(async { while rt.now() < Nanos::from_millis(1) {} });
    assert!(matches!(&error, Err(RtError::NeverYields { name, .. }) if name == "main"), "{error:?}");
}

#[test]
fn time_that_stands_still_is_detected() {
    let config =
        SimConfig { most_polls_at_once: 1_000, ..SimConfig::new(Machine::free(1, Preemption::None), 1) };
    let sim = Sim::with_config(config);
    let rt = sim.rt();
    let rt2 = rt.clone();
    let error = rt.block_on(async {
        rt.spawn("fidget", Class::RealTime(1), async move {
            loop {
                rt2.yield_now().await;
            }
        })
        .await
    });
    let expected = RtError::Livelock { name: "fidget".into(), at: Nanos::ZERO, polls: 1_001 };
    assert_eq!(error, Err(expected));
}

#[test]
fn time_that_overflows_is_detected_and_named() {
    let limits = |longest_stretch| SimConfig {
        longest_stretch,
        ..SimConfig::new(Machine::free(1, Preemption::None), 1)
    };
    let sim = Sim::with_config(limits(Nanos::MAX));
    let rt = sim.rt();
    let error = rt.block_on(async {
        rt.sleep_until(Nanos(1 << 63)).await;
        rt.charge(Cpu(Nanos(1 << 63)));
    });
    let span = Nanos(1 << 63);
    assert_eq!(error, Err(RtError::TimeOverflow { name: "main".into(), at: span, span }));
    let error = rt.block_on(rt.sleep(Nanos::MAX));
    assert!(matches!(error, Err(RtError::TimeOverflow { .. })), "{error:?}");
}

#[test]
fn block_on_inside_the_world_is_refused() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    assert_eq!(rt.block_on(async { rt.block_on(async {}) }), Ok(Err(RtError::Nested)));
}

#[test]
fn blocking_work_runs_at_once() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let n = rt.block_on(async { rt.spawn_blocking("read a directory", || 3).await });
    assert_eq!(n, Ok(Ok(3)));
}

#[test]
fn a_device_calls_back_at_its_time_and_its_work_is_taken_from_a_processor() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let seen = Arc::new(AtomicU64::new(0));
    let (seen2, rt2, devices) = (seen.clone(), rt.clone(), sim.devices());
    sim.call_at(Nanos::from_millis(2), move || {
        seen2.store(rt2.now().0, SeqCst);
        rt2.charge(Cpu(Nanos::from_millis(1)));
        let again = seen2.clone();
        devices.call_at(Nanos::from_millis(9), move || {
            again.fetch_add(1, SeqCst);
        });
    });
    let end = rt.block_on(async {
        rt.charge(Cpu(Nanos::from_millis(10)));
        rt.yield_now().await;
        rt.now()
    });
    assert_eq!(end, Ok(Nanos::from_millis(11)));
    assert_eq!(seen.load(SeqCst), 2 * MS + 1);
}

#[test]
fn timers_that_are_dropped_do_not_pile_up_or_hold_time() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    rt.block_on(async {
        for _ in 0..100_000 {
            let mut far = std::pin::pin!(rt.sleep(Nanos::from_secs(1_000)));
            std::future::poll_fn(|cx| {
                assert!(far.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
    })
    .unwrap();
    assert_eq!(rt.now(), Nanos::ZERO);
    assert!(matches!(
        rt.block_on(std::future::pending::<()>()),
        Err(RtError::Deadlock { at: Nanos::ZERO, .. })
    ));
}

#[test]
fn shutdown_names_what_had_not_ended() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt();
    let task = rt.spawn("flusher", Class::Normal, std::future::pending::<()>());
    rt.block_on(rt.sleep(Nanos(5))).unwrap();
    assert_eq!(rt.shutdown(Nanos::ZERO).in_flight, ["flusher"]);
    assert_eq!(rt.block_on(task).unwrap(), Err(RtError::ShutDown { name: "flusher".into() }));
}

#[test]
fn a_task_knows_what_it_has_used() {
    let sim = free(1, Preemption::None);
    let rt = sim.rt().clone();
    let used = rt.block_on(async {
        let other = rt.spawn("other", Class::Normal, work(rt.clone(), [5, 5]));
        let task = rt.spawn("task", Class::Normal, {
            let rt = rt.clone();
            async move {
                work(rt.clone(), [1, 2, 3]).await;
                rt.sleep(Nanos::from_secs(1)).await;
                rt.charge(Cpu(Nanos(7)));
                rt.task_usage()
            }
        });
        other.await.unwrap();
        task.await.unwrap()
    });
    let used = used.unwrap().expect("a virtual world counts");
    assert_eq!(used.cpu, Nanos(6 * MS + 7), "waiting and sleeping are free");
    assert_eq!(used.turns, 5, "once at first, after each of three yields, and after sleeping");
    assert_eq!(Rt::real(Default::default()).task_usage(), None);
}
