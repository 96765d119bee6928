//! The cost of work on the I/O path.

use crate::Nanos;

/// The kinds of work a layer charges for: keys of the table `[costs]` in a machine's model.
#[derive(Debug)]
pub struct CostTable {
    /// The layer's name, for errors.
    pub layer: &'static str,
    /// One key for each kind of work.
    pub keys: &'static [&'static str],
}

/// An amount of work to charge.
#[derive(Clone, Copy, Debug)]
pub enum Charge {
    /// Processor time.
    Time(Nanos),
    /// Units of one kind of work.
    Units {
        /// The layer's kinds of work.
        table: &'static CostTable,
        /// Index into the table's keys.
        index: usize,
        /// Number of units.
        units: u64,
    },
}

/// Work that can be charged: a value of an enum declared with [`costs!`](crate::costs).
///
/// In the virtual world, the machine's model has the price per unit. The real world charges
/// nothing, since there the work itself takes the time.
pub trait Work: Copy {
    /// The kind and amount of work.
    fn charge(self) -> Charge;
}

/// Declares the kinds of work a layer charges for, each with its key in a machine's model.
///
/// ```
/// extant_rt::costs! {
///     /// Work of the bakery.
///     pub enum Cost of "bakery" {
///         /// Kneading, per kilogram.
///         Knead = "knead_ns",
///     }
/// }
/// assert_eq!(Cost::table().keys, ["knead_ns"]);
/// extant_rt::Rt::real(Default::default()).charge(Cost::Knead(3)); // free in the real world
/// ```
#[macro_export]
macro_rules! costs {
    (
        $(#[$enum_doc:meta])* $vis:vis enum $name:ident of $layer:literal {
            $($(#[$doc:meta])* $variant:ident = $key:literal,)*
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$doc])* $variant(u64),)*
        }

        impl $name {
            /// All kinds, to check that a machine's model has a price for each.
            pub fn table() -> &'static $crate::CostTable {
                static TABLE: $crate::CostTable = $crate::CostTable { layer: $layer, keys: &[$($key),*] };
                &TABLE
            }
        }

        impl $crate::Work for $name {
            #[inline]
            fn charge(self) -> $crate::Charge {
                #[repr(usize)]
                enum Index { $($variant),* }
                let (index, units) = match self {
                    $(Self::$variant(units) => (Index::$variant as usize, units),)*
                };
                $crate::Charge::Units { table: Self::table(), index, units }
            }
        }
    };
}

/// Processor time, charged as is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(pub Nanos);

impl Work for Cpu {
    #[inline]
    fn charge(self) -> Charge {
        Charge::Time(self.0)
    }
}

costs! {
    /// Work of the keyed wait tables.
    pub enum Cost of "rt" {
        /// Putting a task on a wait queue.
        WaitQueue = "wait_queue_ns",
        /// Examining waiters during a wake-up, one unit per waiter.
        WaitScan = "wait_scan_ns",
    }
}
