//! The price of work on the path.

use crate::Nanos;

/// The kinds of work that a layer charges for: keys of the table `[costs]` in a machine's model.
#[derive(Debug)]
pub struct CostTable {
    /// The layer's name, for errors.
    pub layer: &'static str,
    /// A key for each kind of work.
    pub keys: &'static [&'static str],
}

/// An amount of work, as a world is charged with it.
#[derive(Clone, Copy, Debug)]
pub enum Charge {
    /// Processor time as such.
    Time(Nanos),
    /// Units of a kind of work.
    Units {
        /// The layer's kinds.
        table: &'static CostTable,
        /// Which of them: an index into its keys.
        index: usize,
        /// How many units.
        units: u64,
    },
}

/// Work that can be charged: a value of an enum that [`costs!`](crate::costs) declares.
///
/// The virtual world's machine model gives the price of one unit; the real world charges nothing, since there the work
/// itself takes the time.
pub trait Work: Copy {
    /// The kind and the amount.
    fn charge(self) -> Charge;
}

/// Declares the kinds of work that a layer charges for, each with its key in a machine's model.
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
            /// All kinds, for the check that a machine's model has a price for each.
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

/// Processor time as such.
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
        /// Examining waiters on a wake-up, one unit for each.
        WaitScan = "wait_scan_ns",
    }
}
