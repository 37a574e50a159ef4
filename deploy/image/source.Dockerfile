# The image of the Dockerfile at the root, compiled in a container: for machines
# without Go that reach a registry. Its context is the root:
#
#   docker build -f deploy/image/source.Dockerfile -t tandem-gateway:local .
#
# Targets nats and etcd are the servers of deploy/compose, from their own modules.
# No RUN needs a shell: any image with Go and CA roots will do as GO_IMAGE.
ARG GO_IMAGE=golang:1.26
FROM ${GO_IMAGE} AS build
WORKDIR /out/data
WORKDIR /src
COPY go.mod go.sum ./
RUN ["go", "mod", "download"]
COPY . .
ENV CGO_ENABLED=0
RUN ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", "/out/", "./cmd/gateway", "./deploy/compose/run"]

FROM scratch AS nats
COPY --from=build /out/run /nats-server
EXPOSE 4222
ENTRYPOINT ["/nats-server"]

FROM scratch AS etcd
COPY --from=build /out/run /usr/local/bin/etcd
EXPOSE 2379
CMD ["/usr/local/bin/etcd"]

FROM scratch AS gateway
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /out/data /data
COPY LICENSE /
COPY --from=build /out/gateway /
ENV TMPDIR=/data
WORKDIR /data
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["/gateway", "health", "--timeout", "2s"]
ENTRYPOINT ["/gateway"]
CMD ["serve", "--http-host", "0.0.0.0"]
