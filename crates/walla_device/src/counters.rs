//! What a device has asked of its driver, counted.

use std::fmt;
use std::ops::Sub;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident: $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$item_doc])* pub $item: u64,)*
        }

        impl $name {
            /// Every count with its name for people, in a fixed order.
            #[must_use]
            pub fn named(&self) -> [(&'static str, u64); [$($label),*].len()] {
                [$(($label, self.$item)),*]
            }

            /// All together.
            #[must_use]
            pub fn total(&self) -> u64 {
                self.named().iter().map(|(_, count)| count).sum()
            }
        }

        impl Sub for $name {
            type Output = Self;

            /// What was counted since `earlier`.
            fn sub(self, earlier: Self) -> Self {
                Self { $($item: self.$item.saturating_sub(earlier.$item),)* }
            }
        }

        /// The counts that are not zero, or `none`.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                for (name, count) in self.named().into_iter().filter(|(_, count)| *count > 0) {
                    write!(f, "{separator}{name} {count}")?;
                    separator = ", ";
                }
                if separator.is_empty() { write!(f, "none") } else { Ok(()) }
            }
        }
    };
}

counters! {
    /// Driver calls by kind. The difference of two readings says what was called between them; a
    /// device that has no driver counts nothing.
    DeviceCounters {
        /// Runs of captured graphs.
        graph_launches: "graph launches",
        /// Kernels launched one by one: upkeep, and programs without a graph.
        kernel_launches: "kernel launches",
        /// Copies between host and device.
        copies: "copies",
        /// Device memory set to one value.
        fills: "fills",
        /// Events recorded.
        event_records: "event records",
        /// Streams told to wait for an event.
        event_waits: "event waits",
        /// Events asked whether they have completed.
        event_queries: "event queries",
        /// Streams asked whether they are empty.
        stream_queries: "stream queries",
        /// Memory allocated, on the device or pinned on the host. Zero in play.
        allocations: "allocations",
        /// Streams and events made. Zero in play.
        objects: "objects made",
        /// Kernel files loaded. Zero in play.
        modules: "modules loaded",
        /// Programs captured. Zero in play.
        captures: "captures",
        /// Graphs made ready to launch. Zero in play.
        instantiations: "instantiations",
        /// Waits for the device. Zero in play.
        synchronisations: "synchronisations",
    }
}

counters! {
    /// Programs that are launched op by op instead of as one graph, by reason. They give the same
    /// tokens. Other systems know two reasons more that cannot come up here: a graph is never
    /// updated, and every chip that has kernels can run graphs.
    GraphFallbacks {
        /// A setting says so.
        switched_off: "switched off",
        /// Enqueueing failed while capturing.
        capture_failed: "capture failed",
        /// What was captured cannot be made ready: it holds a node that the driver does not take.
        incompatible_node: "incompatible node",
        /// The driver refused to launch a graph that was ready: it was given up in play.
        launch_failed: "launch failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_what_happened_between() {
        let earlier = DeviceCounters { copies: 2, ..DeviceCounters::default() };
        let later = DeviceCounters { copies: 5, graph_launches: 1, ..DeviceCounters::default() };
        let between = later - earlier;
        assert_eq!((between.copies, between.graph_launches, between.total()), (3, 1, 4));
        assert_eq!(between.to_string(), "graph launches 1, copies 3");
        assert_eq!((earlier - earlier).to_string(), "none");
    }
}
