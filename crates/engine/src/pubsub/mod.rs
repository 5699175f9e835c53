//! Publishing: from the application, relays and the broker, to the workers and to the broker.

pub(crate) mod broker_sink;
pub(crate) mod publish;
