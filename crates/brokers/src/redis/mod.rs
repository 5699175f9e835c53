//! Redis, Valkey and what speaks like them: topics are channels, wildcards patterns that match more.
//!
//! One connection publishes, many messages at a time, and one is subscribed, as the protocol that all versions speak
//! wants it. Each is made again on its own when it breaks. Which server it is, Sentinels may say.

mod cluster;
pub(crate) mod glob;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt, future};
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, Msg,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode,
};
use wirespeed_engine::driver::tls::Stamp;
use wirespeed_engine::topics::Pattern;

use self::glob::glob;
use crate::account::{ALL, Account};
use crate::address::{Address, Files, Kind};
use crate::backoff;
use crate::held::{Breaths, held};
use crate::node::{Shared, ended};
use crate::parcel;

/// Bytes that are sent at once.
const BATCH: usize = 256 * 1024;

/// Channels in one command.
const CHANNELS: usize = 512;

/// How long a server may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long nothing is said before it is asked whether it is there.
const PING: Duration = Duration::from_secs(2);

const PUBLISHES: u8 = 1;
const RECEIVES: u8 = 2;

pub(crate) async fn serve(shared: &Shared) {
    if shared.address.kind == Kind::Cluster {
        return cluster::serve(shared).await;
    }
    let needed = if shared.receives() { PUBLISHES | RECEIVES } else { PUBLISHES };
    let link = Link { shared, up: Cell::new(0), needed };
    let publish = again(&link, PUBLISHES, async |target| publish(&link, target).await);
    let account = RefCell::new(shared.account());
    let receive = async {
        if shared.receives() {
            again(&link, RECEIVES, async |target| {
                let error = receive(&link, target, &account).await;
                shared.lose_subscriptions(&mut account.borrow_mut());
                error
            })
            .await;
        }
    };
    future::join(publish, receive).await;
}

/// Why a connection is none.
enum Broken {
    /// The server, or the way to it.
    Redis(RedisError),
    /// It says nothing.
    Silent,
    /// It has closed it.
    Closed,
    /// In words.
    Other(String),
}

impl From<RedisError> for Broken {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Redis(error) => write!(f, "{error}"),
            Self::Silent => f.write_str("the server does not answer"),
            Self::Closed => f.write_str("the server has closed the connection"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Waits no longer than a server may say nothing.
async fn patiently<T, E: Into<Broken>>(answer: impl Future<Output = Result<T, E>>) -> Result<T, Broken> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = held();
        match tokio::time::timeout(PATIENCE, &mut answer).await {
            Ok(answered) => return answered.map_err(Into::into),
            Err(_) if held() != before => {} // it may be there, and nobody has read
            Err(_) => return Err(Broken::Silent),
        }
    }
}

/// Both connections together.
struct Link<'a> {
    shared: &'a Shared,
    up: Cell<u8>,
    needed: u8,
}

impl Link<'_> {
    fn set_up(&self, which: u8) {
        self.up.set(self.up.get() | which);
        if self.up.get() == self.needed {
            self.shared.set_connected();
        }
    }

    fn set_down(&self, which: u8, reason: &Broken) {
        self.up.set(self.up.get() & !which);
        self.shared.set_disconnected(&reason.to_string());
        // Whoever publishes and has nothing to do asks the server before it is said again that there is a connection.
        self.shared.outgoing.notify_one();
    }
}

/// Connects for ever; the pauses are short again after a connection that came about.
async fn again(link: &Link<'_>, which: u8, mut serve: impl AsyncFnMut(&mut Target) -> Broken) {
    let address = &link.shared.address;
    let mut attempt = 0;
    // A target keeps what it has read: it is made again once the files have changed.
    let mut made: Option<(Stamp, Target)> = None;
    loop {
        let before = link.up.get() & which;
        let files = Stamp::of(address.files());
        made = made.filter(|(read, _)| *read == files);
        let reason = match &mut made {
            Some((_, target)) => serve(target).await,
            None => match Target::new(address) {
                Ok(new) => serve(&mut made.insert((files, new)).1).await,
                Err(error) => error,
            },
        };
        attempt = if before == 0 && link.up.get() & which == 0 { attempt + 1 } else { 0 };
        link.set_down(which, &reason);
        tokio::time::sleep(backoff::delay(attempt)).await;
    }
}

/// Which server.
enum Target {
    One(Box<Client>),
    Sentinel(Box<SentinelClient>),
}

impl Target {
    fn new(address: &Address) -> Result<Self, Broken> {
        let settings = settings(address)?;
        if address.kind == Kind::Sentinel {
            return Ok(Self::Sentinel(Box::new(sentinel(address, &settings)?)));
        }
        let Some(server) = addresses(address).next() else { return Err(Broken::Other("no server".into())) };
        let info = server.into_connection_info()?.set_redis_settings(settings);
        Ok(Self::One(Box::new(match certificates(address)? {
            Some(certificates) => Client::build_with_tls(info, certificates)?,
            None => Client::open(info)?,
        })))
    }

    async fn client(&mut self) -> Result<Client, Broken> {
        match self {
            Self::One(client) => Ok((**client).clone()),
            Self::Sentinel(sentinel) => patiently(sentinel.async_get_client()).await,
        }
    }
}

fn addresses(address: &Address) -> impl Iterator<Item = ConnectionAddr> {
    address.servers.iter().map(|server| match address.tls {
        false => ConnectionAddr::Tcp(server.host.clone(), server.port),
        true => {
            let host = server.host.clone();
            ConnectionAddr::TcpTls { host, port: server.port, insecure: false, tls_params: None }
        }
    })
}

fn settings(address: &Address) -> Result<RedisConnectionInfo, Broken> {
    let database = address.database().map_err(|error| Broken::Other(error.to_string()))?;
    let mut settings = RedisConnectionInfo::default().set_db(database);
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    Ok(settings)
}

/// Reads the files. They are small, and this thread serves nothing else.
fn certificates(address: &Address) -> Result<Option<TlsCertificates>, Broken> {
    if address.files().next().is_none() {
        return Ok(None);
    }
    let Files { ca, identity } = address.read_files().map_err(Broken::Other)?;
    let client_tls = identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(Some(TlsCertificates { client_tls, root_cert: ca }))
}

/// Credentials are those of the servers: Sentinels are asked without.
fn sentinel(address: &Address, settings: &RedisConnectionInfo) -> Result<SentinelClient, Broken> {
    let mut builder = SentinelClientBuilder::new(addresses(address), &address.path, SentinelServerType::Master)?;
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if address.tls {
        builder =
            builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates(address)? {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
    }
    Ok(builder.build()?)
}

// ---- what leaves ----

async fn publish(link: &Link<'_>, target: &mut Target) -> Broken {
    match try_publish(link, target).await {
        Ok(never) => never,
        Err(broken) => broken,
    }
}

async fn try_publish(link: &Link<'_>, target: &mut Target) -> Result<Broken, Broken> {
    let shared = link.shared;
    // Who waits for an answer is patient: the library does not know that this thread was held up.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(None);
    let client = target.client().await?;
    let mut connection = patiently(client.get_multiplexed_async_connection_with_config(&config)).await?;
    link.set_up(PUBLISHES);
    let mut under_way = shared.under_way();
    loop {
        // If the other one broke, this one may have without having said so, and what is taken would be in doubt.
        if !shared.is_connected() {
            patiently(ping(&mut connection)).await?;
        }
        let items = under_way.take(BATCH);
        if items.is_empty() {
            let notified = std::pin::pin!(shared.outgoing.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                patiently(ping(&mut connection)).await?;
            }
            continue;
        }
        let mut commands = redis::pipe();
        let mut counts = Vec::new();
        for parcel in parcel::pack(items, parcel::MOST) {
            commands.cmd("PUBLISH").arg(shared.name(&parcel.to)).arg(&parcel.bytes[..]);
            counts.push(parcel.count);
        }
        let answers: Vec<Answer> = patiently(commands.ignore_errors().query_async(&mut connection)).await?;
        for (count, answer) in counts.into_iter().zip(answers) {
            match fate(answer)? {
                None => under_way.settle(count),
                Some(refusal) => {
                    under_way.refuse(count);
                    shared.set_reason(&refusal);
                }
            }
        }
    }
}

/// What a server says of something that is published: how many have got it.
type Answer = RedisResult<i64>;

/// Why the server has refused something, in words; `None`: it has it. Fails if that is no answer to it.
fn fate(answer: Answer) -> Result<Option<String>, Broken> {
    match answer {
        Ok(_) => Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("PING").query_async(connection).await
}

// ---- what comes ----

/// Subscriptions, as the server knows them.
#[derive(Default)]
struct Known {
    /// Several of our patterns may be one of its.
    globs: HashMap<String, Vec<Pattern>>,
    /// Confirmed, and not yet taken for it: what came before is to be looked at first.
    confirmed: Vec<Pattern>,
    /// Those of which all that came before was taken from the library.
    preceded: Vec<Pattern>,
}

async fn receive(link: &Link<'_>, target: &mut Target, account: &RefCell<Account>) -> Broken {
    let connected = async {
        let client = target.client().await?;
        patiently(client.get_async_pubsub()).await
    };
    let pubsub: PubSub = match connected.await {
        Ok(pubsub) => pubsub,
        Err(broken) => return broken,
    };
    let (mut sink, mut stream) = pubsub.split();
    let known = RefCell::new(Known::default());
    let subscribe = std::pin::pin!(async {
        match subscribe(link, &mut sink, account, &known).await {
            Ok(never) => never,
            Err(broken) => broken,
        }
    });
    let read = std::pin::pin!(async {
        let mut came = Vec::new();
        loop {
            // All that is there, before what was confirmed meanwhile is taken for it.
            let taken = future::poll_fn(|cx| {
                while let std::task::Poll::Ready(next) = stream.poll_next_unpin(cx) {
                    came.push(next);
                    if came.last().is_some_and(Option::is_none) {
                        break;
                    }
                }
                let waits = came.is_empty() && known.borrow().confirmed.is_empty();
                if waits { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            });
            tokio::task::unconstrained(taken).await;
            {
                // Not taken out: what is ended while this lets others go on is not confirmed.
                let Known { confirmed, preceded, .. } = &mut *known.borrow_mut();
                preceded.append(confirmed);
            }
            let mut breaths = Breaths::new();
            for message in came.drain(..) {
                let Some(message) = message else { return Broken::Closed };
                arrive(link.shared, &mut account.borrow_mut(), &known.borrow(), &message);
                breaths.take().await;
            }
            let mut account = account.borrow_mut();
            known.borrow_mut().preceded.drain(..).for_each(|pattern| account.confirm(&pattern));
        }
    });
    // Whoever confirms comes first, so that who waits for it is asked after it.
    match future::select(subscribe, read).await {
        future::Either::Left((broken, _)) | future::Either::Right((broken, _)) => broken,
    }
}

fn arrive(shared: &Shared, account: &mut Account, known: &Known, message: &Msg) {
    let via = match message.from_pattern() {
        false => None,
        true => message.get_pattern::<String>().ok().and_then(|glob| known.globs.get(&glob)).map(Vec::as_slice),
    };
    if via.is_none() && message.from_pattern() {
        return; // it is being ended
    }
    let name = message.get_channel_name();
    let exact = match via {
        // A channel's own subscription.
        None => name.strip_prefix(shared.prefix.as_str()).and_then(|name| Pattern::new(name).ok()),
        Some(_) => None,
    };
    let via = via.or(exact.as_ref().filter(|exact| exact.as_str() != ALL).map(std::slice::from_ref));
    shared.arrive(account, name, via, message.get_payload_bytes());
}

async fn subscribe(
    link: &Link<'_>,
    sink: &mut PubSubSink,
    account: &RefCell<Account>,
    known: &RefCell<Known>,
) -> Result<Broken, Broken> {
    let shared = link.shared;
    if let Some(reason) = denial(patiently(sink.subscribe(format!("{}{ALL}", shared.prefix))).await)? {
        deny_all(shared, &reason);
    }
    let changes = shared.take_interests(&mut account.borrow_mut());
    change(shared, sink, account, known, changes).await?;
    // All that was wanted by then is there. What has been wanted since may never end.
    link.set_up(RECEIVES);
    loop {
        let changes = shared.take_interests(&mut account.borrow_mut());
        if changes.is_empty() {
            let notified = std::pin::pin!(shared.wanted.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                patiently(sink.ping::<redis::Value>()).await?;
            }
            continue;
        }
        change(shared, sink, account, known, changes).await?;
    }
}

/// Has the server know what is wanted, and what is not any more.
async fn change(
    shared: &Shared,
    sink: &mut PubSubSink,
    account: &RefCell<Account>,
    known: &RefCell<Known>,
    changes: Vec<Change>,
) -> Result<(), Broken> {
    account.borrow_mut().end(ended(&changes));
    let (wanted, ended): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, wanted)| *wanted);
    for chunk in ended.chunks(CHANNELS) {
        end(shared, sink, known, chunk).await?;
    }
    for chunk in wanted.chunks(CHANNELS) {
        begin(shared, sink, account, known, chunk).await?;
    }
    Ok(())
}

/// What is for all is denied.
fn deny_all(shared: &Shared, reason: &str) {
    if let Ok(pattern) = Pattern::new(ALL) {
        shared.tell_denied(&pattern, reason);
    }
}

type Change = (Pattern, bool);

/// Why an ACL does not let us have what was asked for, in words; `None`: we have it. Other answers, which may be others later,
/// are for a connection that is made again.
fn denial(answer: Result<(), Broken>) -> Result<Option<String>, Broken> {
    match answer {
        Ok(()) => Ok(None),
        Err(Broken::Redis(error)) if error.code() == Some("NOPERM") => Ok(Some(error.to_string())),
        Err(broken) => Err(broken),
    }
}

/// Subscribes to channels, or patterns of the server's, with one command. If it is denied, as it is for one of them, each
/// is asked for by itself. What is denied, and why.
async fn ask(sink: &PubSubSink, names: Vec<String>, globs: bool) -> Result<Vec<(String, String)>, Broken> {
    let subscribe = async |names: &[String]| {
        let mut sink = sink.clone();
        let answer = match globs {
            false => patiently(sink.subscribe(names)).await,
            true => patiently(sink.psubscribe(names)).await,
        };
        denial(answer)
    };
    if names.is_empty() || subscribe(&names).await?.is_none() {
        return Ok(Vec::new());
    }
    let answers = future::join_all(names.iter().map(|name| subscribe(std::slice::from_ref(name)))).await;
    let mut denied = Vec::new();
    for (name, answer) in names.into_iter().zip(answers) {
        denied.extend(answer?.map(|reason| (name, reason)));
    }
    Ok(denied)
}

async fn begin(
    shared: &Shared,
    sink: &PubSubSink,
    account: &RefCell<Account>,
    known: &RefCell<Known>,
    chunk: &[Change],
) -> Result<(), Broken> {
    let (mut channels, mut globs) = (Vec::new(), Vec::new());
    for (pattern, _) in chunk {
        account.borrow_mut().ask(pattern);
        if pattern.is_exact() {
            channels.push(format!("{}{pattern}", shared.prefix));
            continue;
        }
        let glob = glob(&shared.prefix, pattern);
        let mut known = known.borrow_mut();
        let patterns = known.globs.entry(glob.clone()).or_default();
        if patterns.is_empty() {
            globs.push(glob);
        }
        patterns.push(pattern.clone());
    }
    let mut denied: HashMap<String, String> = ask(sink, channels, false).await?.into_iter().collect();
    for (glob, reason) in ask(sink, globs, true).await? {
        known.borrow_mut().globs.remove(&glob); // all of its patterns are of this chunk
        denied.insert(glob, reason);
    }
    for (pattern, _) in chunk {
        let name = match pattern.is_exact() {
            true => format!("{}{pattern}", shared.prefix),
            false => glob(&shared.prefix, pattern),
        };
        match denied.get(&name) {
            Some(reason) => shared.deny(&mut account.borrow_mut(), pattern, Some(reason)),
            None => {
                known.borrow_mut().confirmed.push(pattern.clone());
                shared.done(pattern, true);
            }
        }
    }
    Ok(())
}

async fn end(shared: &Shared, sink: &mut PubSubSink, known: &RefCell<Known>, chunk: &[Change]) -> Result<(), Broken> {
    let (mut channels, mut globs) = (Vec::new(), Vec::new());
    for (pattern, _) in chunk {
        if pattern.is_exact() {
            channels.push(format!("{}{pattern}", shared.prefix));
            continue;
        }
        let glob = glob(&shared.prefix, pattern);
        let mut known = known.borrow_mut();
        if let Some(patterns) = known.globs.get_mut(&glob) {
            patterns.retain(|other| other != pattern);
            if patterns.is_empty() {
                known.globs.remove(&glob);
                globs.push(glob);
            }
        }
    }
    if !channels.is_empty() {
        patiently(sink.unsubscribe(channels)).await?;
    }
    if !globs.is_empty() {
        patiently(sink.punsubscribe(globs)).await?;
    }
    for (pattern, _) in chunk {
        let Known { confirmed, preceded, .. } = &mut *known.borrow_mut();
        confirmed.retain(|other| other != pattern);
        preceded.retain(|other| other != pattern);
        shared.done(pattern, false);
    }
    Ok(())
}
