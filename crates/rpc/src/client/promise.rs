//! A value that one side fills and the other awaits, across threads.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::CallError;
use crate::frame::Frame;
use crate::sync::{Mutex, MutexGuard};

enum State<T> {
    Waiting(Option<Waker>),
    Filled(T),
    Taken,
}

/// Filled once.
struct Promise<T>(Mutex<State<T>>);

impl<T> Promise<T> {
    fn new() -> Arc<Promise<T>> {
        Arc::new(Promise(Mutex::new(State::Waiting(None))))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the promise, unless it was filled before, and wakes whoever waits.
    fn fill(&self, value: T) {
        let mut state = self.lock();
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Filled(value);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.lock(), State::Waiting(_))
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.lock();
        match &mut *state {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(none) => *none = Some(cx.waker().clone()),
            State::Filled(_) => {
                if let State::Filled(value) = std::mem::replace(&mut *state, State::Taken) {
                    return Poll::Ready(value);
                }
            }
            State::Taken => panic!("polled after it was ready"),
        }
        Poll::Pending
    }
}

/// A call's end, as a future: the reply, whatever its status, or why there is none. Dropping it
/// does not cancel the request.
#[must_use = "the request is only sent when somebody waits"]
pub struct Call(Arc<Promise<Result<Frame, CallError>>>);

/// The side that ends a [`Call`]. Dropping it ends the call as `Disconnected`.
pub struct CallPromise(Arc<Promise<Result<Frame, CallError>>>);

impl Call {
    /// A call and the promise that ends it.
    pub fn new() -> (CallPromise, Call) {
        let promise = Promise::new();
        (CallPromise(promise.clone()), Call(promise))
    }
}

impl Future for Call {
    type Output = Result<Frame, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl CallPromise {
    /// Ends the call.
    pub fn complete(self, result: Result<Frame, CallError>) {
        self.0.fill(result);
    }

    /// Whether nobody waits for the result any more.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for CallPromise {
    fn drop(&mut self) {
        if self.0.is_waiting() {
            self.0.fill(Err(CallError::Disconnected));
        }
    }
}

/// What another thread finds out, as a future; `None` if that thread has ended before.
#[must_use = "what is found out is lost unless somebody waits"]
pub struct LocalAnswer<T>(Arc<Promise<Option<T>>>);

/// The side that fills a [`LocalAnswer`]. Dropping it fills it with `None`.
pub struct LocalAnswerPromise<T>(Arc<Promise<Option<T>>>);

impl<T> LocalAnswer<T> {
    /// An answer and the promise that fills it.
    pub fn new() -> (LocalAnswerPromise<T>, LocalAnswer<T>) {
        let promise = Promise::new();
        (LocalAnswerPromise(promise.clone()), LocalAnswer(promise))
    }
}

impl<T> Future for LocalAnswer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll(cx)
    }
}

impl<T> LocalAnswerPromise<T> {
    /// This is the answer.
    pub fn complete(self, value: T) {
        self.0.fill(Some(value));
    }
}

impl<T> Drop for LocalAnswerPromise<T> {
    fn drop(&mut self) {
        self.0.fill(None);
    }
}

/// A pause, as a future.
#[must_use = "nothing sleeps until this is awaited"]
pub struct Sleep(Arc<Promise<()>>);

/// The side that ends a [`Sleep`]. Dropping it ends the sleep.
pub struct SleepPromise(Arc<Promise<()>>);

impl Sleep {
    /// A sleep and the promise that ends it.
    pub fn new() -> (SleepPromise, Sleep) {
        let promise = Promise::new();
        (SleepPromise(promise.clone()), Sleep(promise))
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

impl SleepPromise {
    /// Ends the sleep.
    pub fn complete(self) {
        // Dropping completes.
    }

    /// Whether nobody sleeps on it any more.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for SleepPromise {
    fn drop(&mut self) {
        self.0.fill(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The result of `call`, which must be pending until `end` runs and be woken by it once.
    fn outcome(end: impl FnOnce(CallPromise)) -> Result<Frame, CallError> {
        let (promise, call) = Call::new();
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut call = pin!(call);
        assert!(call.as_mut().poll(&mut cx).is_pending());
        end(promise);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        match call.as_mut().poll(&mut cx) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("still pending"),
        }
    }

    #[test]
    fn a_call_ends_with_its_promise() {
        let empty = bytes::Bytes::new();
        let frame = Frame::request(1, 2, empty.clone(), empty);
        assert_eq!(outcome(|promise| promise.complete(Ok(frame.clone()))), Ok(frame));
        assert_eq!(outcome(|s| s.complete(Err(CallError::Timeout))), Err(CallError::Timeout));
        assert_eq!(outcome(drop), Err(CallError::Disconnected));
    }

    #[test]
    fn an_abandoned_slot_knows_it() {
        let (promise, call) = Call::new();
        assert!(!promise.is_abandoned());
        drop(call);
        assert!(promise.is_abandoned());
        let (promise, sleep) = Sleep::new();
        assert!(!promise.is_abandoned());
        drop(sleep);
        assert!(promise.is_abandoned());
    }
}
