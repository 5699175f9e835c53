//! Moves bytes through the TLS layers before the WebSocket begins. It performs no I/O.

use std::sync::Arc;

use wirespeed_protocol::{Connection, PayloadBuffer};

use crate::endpoint::{Endpoint, Failure};
use crate::keepalive::Keepalive;
use crate::tls::{self, Layer, Stacked};
use crate::write_queue::WriteQueue;

/// The bytes of a stream before the WebSocket begins, plain or under one or two layers of TLS.
#[derive(Default)]
pub(super) struct EarlyStream {
    layer: Option<Box<dyn Layer>>,
    cipher_tail: Vec<u8>,
    plain: Vec<u8>,
    output: WriteQueue,
    eof: bool,
    /// Why no more bytes arrive; returned after the earlier bytes were taken.
    failure: Option<tls::Error>,
}

impl EarlyStream {
    /// Adds a layer on top, and begins its handshake. Its first bytes are in the output.
    pub(super) fn start_layer(&mut self, layer: Box<dyn Layer>) -> Result<(), tls::Error> {
        let came = std::mem::take(&mut self.plain);
        self.layer = Some(match self.layer.take() {
            // The outer layer has decrypted these bytes; bytes that it has not decrypted are still its own.
            Some(outer) => Box::new(Stacked::new(outer, layer, came)),
            None => {
                self.cipher_tail = came;
                layer
            }
        });
        self.decrypt()
    }

    /// Returns the topmost layer.
    pub(super) fn layer(&self) -> Option<&dyn Layer> {
        self.layer.as_deref()
    }

    /// Returns whether the handshake of a layer is in progress; fails if it can never complete.
    pub(super) fn is_handshaking(&self) -> Result<bool, tls::Error> {
        let handshaking = self.layer.as_ref().is_some_and(|layer| layer.is_handshaking());
        if handshaking && self.eof {
            return Err(tls::Error::Protocol("the peer closed the connection during the TLS handshake".into()));
        }
        Ok(handshaking)
    }

    /// Queues bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), tls::Error> {
        match &mut self.layer {
            Some(layer) => layer.send(&mut self.cipher_tail, bytes, self.output.tail()),
            None => {
                self.output.tail().extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Takes bytes that were read. After an error, the output should still be written: it may be an alert.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), tls::Error> {
        if self.layer.is_some() {
            self.cipher_tail.extend_from_slice(bytes);
            self.decrypt()
        } else {
            self.plain.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Returns whether bytes have arrived that were not consumed.
    pub(super) fn has_input(&self) -> bool {
        !self.plain.is_empty() || !self.cipher_tail.is_empty()
    }

    /// Records the end of the stream.
    pub(super) fn receive_eof(&mut self) {
        self.eof = true;
    }

    /// Returns the plain bytes that have arrived, or `None` if there are none and none will arrive. An error that
    /// came after them is returned once they are taken.
    pub(super) fn plain(&mut self) -> Result<Option<&[u8]>, tls::Error> {
        if self.plain.is_empty() {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.eof {
                return Ok(None);
            }
        }
        Ok(Some(&self.plain))
    }

    /// Removes the first `count` plain bytes and frees their memory: a peer that sent part of a head may stay
    /// silent.
    pub(super) fn consume(&mut self, count: usize) {
        self.plain.drain(..count);
        if self.plain.is_empty() {
            self.plain = Vec::new();
        }
    }

    /// Returns the bytes to be written.
    pub(super) fn output(&mut self) -> &mut WriteQueue {
        &mut self.output
    }

    /// Creates the endpoint that continues, with the early input and the queued output.
    pub(super) fn into_endpoint<B: PayloadBuffer>(
        self,
        connection: Connection<B>,
        keepalive: Keepalive,
    ) -> Endpoint<B> {
        let mut endpoint = Endpoint::new(connection, self.layer, &self.plain, self.cipher_tail, keepalive);
        endpoint.send_half_mut().set_output(self.output);
        if let Some(error) = self.failure {
            endpoint.fail_after_input(Failure::Tls(Arc::new(error)));
        } else if self.eof {
            endpoint.receive_eof();
        }
        endpoint
    }

    fn decrypt(&mut self) -> Result<(), tls::Error> {
        let Some(layer) = &mut self.layer else { return Ok(()) };
        let mut cipher = std::mem::take(&mut self.cipher_tail);
        let consumed = match layer.receive(&mut cipher, &mut self.plain, self.output.tail()) {
            Ok(consumed) => consumed,
            // Bytes decrypted before the error are valid and come first.
            Err(error) if !self.plain.is_empty() => {
                self.failure = Some(error);
                cipher.len()
            }
            Err(error) => return Err(error),
        };
        if self.output.is_empty() {
            self.output.clear();
        }
        if layer.is_peer_closed() {
            self.eof = true;
        }
        // A vector of its size, because it may stay for the life of the connection.
        self.cipher_tail = cipher.get(consumed..).unwrap_or_default().to_vec();
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
mod tests {
    use std::any::Any;

    use super::*;
    use crate::tls::Error;

    /// A test layer: records of a length and as many bytes, each XORed with a key.
    struct Toy(u8);

    fn record(key: u8, plain: &[u8]) -> Vec<u8> {
        let length = u8::try_from(plain.len()).unwrap();
        std::iter::once(length).chain(plain.iter().map(|byte| byte ^ key)).collect()
    }

    impl Layer for Toy {
        fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<usize, Error> {
            let mut consumed = 0;
            while let Some((&length, rest)) = incoming[consumed..].split_first() {
                let Some(bytes) = rest.get(..usize::from(length)) else { break };
                plain.extend(bytes.iter().map(|byte| byte ^ self.0));
                consumed += 1 + bytes.len();
            }
            Ok(consumed)
        }

        fn send(&mut self, _: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error> {
            outgoing.extend(record(self.0, plain));
            Ok(())
        }

        fn close(&mut self, _: &mut [u8], _: &mut Vec<u8>) {}

        fn is_handshaking(&self) -> bool {
            false
        }

        fn is_peer_closed(&self) -> bool {
            false
        }

        fn alpn(&self) -> Option<Vec<u8>> {
            None
        }

        fn version(&self) -> Option<String> {
            None
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// Wherever the bytes after the proxy's response are cut, and whether or not they came with it.
    #[test]
    fn bytes_after_the_proxy_response_go_to_the_inner_layer() {
        let inner = [record(2, b"first"), record(2, b"second")].concat();
        let wires = [
            [record(1, b"200"), record(1, &inner)].concat(),
            [record(1, &[b"200".as_slice(), &inner[..4]].concat()), record(1, &inner[4..])].concat(),
        ];
        for wire in wires {
            for cut in 4..=wire.len() {
                let (now, later) = wire.split_at(cut);
                let mut early = EarlyStream::default();
                early.start_layer(Box::new(Toy(1))).unwrap();
                early.receive(now).unwrap();
                if early.plain().unwrap().is_none_or(|plain| plain.len() < 3) {
                    continue; // its answer is not whole
                }
                early.consume(3);
                early.start_layer(Box::new(Toy(2))).unwrap();
                early.receive(later).unwrap();
                assert_eq!(early.plain().unwrap(), Some(b"firstsecond".as_slice()), "cut at {cut}");
            }
        }
    }
}
