# syntax=docker/dockerfile:1

# --- build -----------------------------------------------------------------------------------------------------------
FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY migrations ./migrations
COPY src ./src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --locked --release --bin taskhold \
    && cp target/release/taskhold /usr/local/bin/taskhold

# --- run -------------------------------------------------------------------------------------------------------------
# Not a distroless base: upstream servers are commands, and an image that adds them (node, python) starts here.
FROM debian:bookworm-slim
COPY --from=build /usr/local/bin/taskhold /usr/local/bin/taskhold
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/taskhold/

# The SQLite file, where that is the database. The only folder beside /tmp that is written to, so the root file system
# may be read-only (give /tmp a tmpfs: upstream servers get their working folders there).
RUN install --directory --owner=10001 --group=10001 --mode=0700 /data
VOLUME /data
WORKDIR /data

ENV TASKHOLD_SERVER_LISTEN=0.0.0.0:8080 \
    TASKHOLD_DATABASE_URL=sqlite:///data/taskhold.db
EXPOSE 8080

# By number, so that an orchestrator can see that it is not root.
USER 10001:10001

# Without curl: bash opens the connection itself. 200 means that the database answers and the schema is current.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [[ $status == 200 ]]"]

# SIGTERM drains: no new work, running work gets its time (25 s by default).
STOPSIGNAL SIGTERM
ENTRYPOINT ["taskhold"]
CMD ["serve"]
