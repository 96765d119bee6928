//! Trace events of the modelled processors.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the modelled processors and their tasks.
    pub enum Event {
        /// A processor switched to another task.
        TaskSwitched = "sched/switch" {
            /// The task that ran before, 0 for none.
            from: u32,
        },
        /// A runnable task lost its processor to another.
        TaskPreempted = "sched/preempt" {
            /// The task that preempts it.
            by: u32,
        },
        /// A task became runnable.
        TaskWoken = "sched/wake" {
            /// The woken task.
            woken: u32,
        },
        /// A task got a processor after waiting for one.
        TaskRan = "sched/latency" {
            /// Time from runnable to running.
            took: Nanos,
        },
        /// A task was spawned.
        TaskSpawned = "task/spawn" {
            /// The new task.
            spawned: u32,
        },
        /// A task ended.
        TaskEnded = "task/end" {},
    }
}
