//! Counters of driver calls.

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
            /// Every counter with its display name, in a fixed order.
            #[must_use]
            pub fn named(&self) -> [(&'static str, u64); [$($label),*].len()] {
                [$(($label, self.$item)),*]
            }

            /// Sum of all counters.
            #[must_use]
            pub fn total(&self) -> u64 {
                self.named().iter().map(|(_, count)| count).sum()
            }
        }

        impl Sub for $name {
            type Output = Self;

            /// The counts since `earlier`.
            fn sub(self, earlier: Self) -> Self {
                Self { $($item: self.$item.saturating_sub(earlier.$item),)* }
            }
        }

        /// Prints the counters that are not zero, or `none`.
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
    /// Driver calls by kind. The difference of two readings counts the calls between them. A device
    /// without a driver counts nothing.
    DeviceCounters {
        /// Launches of captured graphs.
        graph_launches: "graph launches",
        /// Kernels launched individually: cache operations, and programs without a graph.
        kernel_launches: "kernel launches",
        /// Copies between host and device.
        copies: "copies",
        /// Device memory fills.
        fills: "fills",
        /// Event records.
        event_records: "event records",
        /// Stream waits for an event.
        event_waits: "event waits",
        /// Event completion queries.
        event_queries: "event queries",
        /// Stream completion queries.
        stream_queries: "stream queries",
        /// Allocations of device memory or pinned host memory. Zero during play.
        allocations: "allocations",
        /// Streams and events created. Zero during play.
        objects: "objects made",
        /// Kernel modules loaded. Zero during play.
        modules: "modules loaded",
        /// Programs captured. Zero during play.
        captures: "captures",
        /// Graphs instantiated. Zero during play.
        instantiations: "instantiations",
        /// Blocking waits for the device. Zero during play.
        synchronizations: "synchronisations",
    }
}

counters! {
    /// Programs that are launched op by op instead of as one graph, by reason. They produce the
    /// same tokens. Two reasons of other systems cannot occur here: graphs are never updated, and
    /// every GPU with kernels supports graphs.
    GraphFallbacks {
        /// Disabled by a setting.
        switched_off: "switched off",
        /// Enqueueing failed during capture.
        capture_failed: "capture failed",
        /// Instantiation failed: the captured graph contains a node that the driver does not
        /// support.
        incompatible_node: "incompatible node",
        /// The driver refused to launch an instantiated graph, which was then abandoned during
        /// play.
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
