"""Rate limits (`rate_limit`) and concurrency limits (`max_concurrency`) for the requests to any model.

`limiter.py` enforces the limits: a request waits there until it may be sent. `request_queue.py` counts the requests and
decides which request is next. `shared_rate_limit.py` adds rate limits that several processes share through a store.
"""
