//! The events of the modelled processors.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the modelled processors and their tasks.
    pub enum Event {
        /// A task was given a processor that had last run another.
        TaskSwitched = "sched/switch" {
            /// The task that had it before, 0 for none.
            from: u32,
        },
        /// A task lost its processor to another while it could have gone on.
        TaskPreempted = "sched/preempt" {
            /// The task that takes it.
            by: u32,
        },
        /// A task was made able to run.
        TaskWoken = "sched/wake" {
            /// The task woken.
            woken: u32,
        },
        /// A task got its processor after it had been able to run for so long.
        TaskRan = "sched/latency" {
            /// From able to running.
            took: Nanos,
        },
        /// A task began.
        TaskSpawned = "task/spawn" {
            /// The new task.
            spawned: u32,
        },
        /// A task ended.
        TaskEnded = "task/end" {},
    }
}
