//! Events: declared by each layer, and passed to sinks that need not know them.

use crate::Nanos;
use std::any::Any;
use std::fmt;

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A span of time.
    Span(Nanos),
    /// A word from the program's source.
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Span(span) => write!(f, "{}", span.0),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Number(n)
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Self::Number(n.into())
    }
}

impl From<Nanos> for Value {
    fn from(span: Nanos) -> Self {
        Self::Span(span)
    }
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

/// An event that a layer traces: a value of an enum declared with [`events!`](crate::events).
pub trait Event: Any + fmt::Debug + Send + Sync {
    /// Layer and event, such as `cache/pause`; the same for all events of a kind.
    fn name(&self) -> &'static str;

    /// Calls `each` with the name and value of every field, in declaration order.
    fn fields(&self, each: &mut dyn FnMut(&'static str, Value));
}

impl dyn Event {
    /// The event as its layer declared it, if it is one of `E`'s.
    pub fn of<E: Event>(&self) -> Option<&E> {
        (self as &dyn Any).downcast_ref()
    }

    /// The duration, for events with a field `took`.
    pub fn took(&self) -> Option<Nanos> {
        let mut took = None;
        self.fields(&mut |name, value| {
            if let ("took", Value::Span(span)) = (name, value) {
                took = Some(span);
            }
        });
        took
    }
}

/// Declares the events of a layer, each with its name and fields: numbers, [`Nanos`], and words
/// from the program's source. A field `took` is the event's duration.
///
/// ```
/// extant_rt::events! {
///     /// Events of the bakery.
///     pub enum Event {
///         /// A loaf is done.
///         Baked = "bakery/baked" {
///             /// Its weight in grams.
///             grams: u32,
///             /// Its time in the oven.
///             took: extant_rt::Nanos,
///         },
///     }
/// }
/// let rt = extant_rt::Rt::real(Default::default());
/// rt.trace(Event::Baked { grams: 750, took: extant_rt::Nanos::from_secs(2_400) });
/// ```
#[macro_export]
macro_rules! events {
    (
        $(#[$enum_doc:meta])* $vis:vis enum $enum:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal {
                $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
            },)*
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis enum $enum {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl $crate::trace::Event for $enum {
            fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)*
                }
            }

            fn fields(&self, each: &mut dyn FnMut(&'static str, $crate::trace::Value)) {
                match *self {
                    $(Self::$variant { $($field,)* } => {
                        $(each(stringify!($field), $crate::trace::Value::from($field));)*
                    })*
                }
                let _ = each;
            }
        }
    };
}

events! {
    /// Events of tasks and keyed waits.
    pub enum TaskEvent {
        /// A task panicked.
        Panicked = "task/panic" {},
        /// A task of the real world ran from one wait or yield to the next.
        Polled = "task/poll" {
            /// The task's number; the sink has been told its name.
            task: u32,
            /// Processor time, without that of other threads that ran on its processor meanwhile.
            processor: Nanos,
            /// Wall-clock duration.
            took: Nanos,
        },
        /// A task waited for a key of a wait table.
        Waited = "wait/key" {
            /// The key.
            key: u64,
            /// How long it waited.
            took: Nanos,
            /// Spurious wake-ups during the wait.
            spurious: u32,
        },
        /// A wake-up of a key's waiters.
        Woke = "wait/wake" {
            /// The key.
            key: u64,
            /// Waiters examined.
            examined: u32,
            /// Waiters woken.
            woken: u32,
        },
    }
}
