//! The executor on test doubles: the hash device in virtual time, with planned faults.

mod evaluate;
mod load;
mod masks;
mod rig;
mod ring;
mod sequences;
mod transfer;
