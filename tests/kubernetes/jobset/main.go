// The controller of JobSets without its webhooks, which would want certificates and a port.
package main

import (
	"context"
	"flag"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
	"sigs.k8s.io/jobset/pkg/webhooks"
)

// A client that reads JobSets with the defaults that the webhook would have written into them.
type defaulting struct {
	client.Client
	defaulter admission.CustomDefaulter
}

func (c defaulting) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	if err := c.Client.Get(ctx, key, into, options...); err != nil {
		return err
	}
	return c.defaulter.Default(ctx, into)
}

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(jobset.AddToScheme(scheme))
	config := ctrl.GetConfigOrDie()
	config.QPS, config.Burst = 500, 500
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	utilruntime.Must(err)
	ctx := ctrl.SetupSignalHandler()
	utilruntime.Must(controllers.SetupJobSetIndexes(ctx, manager.GetFieldIndexer()))
	utilruntime.Must(controllers.SetupPodIndexes(ctx, manager.GetFieldIndexer()))
	webhook, err := webhooks.NewJobSetWebhook(manager.GetClient())
	utilruntime.Must(err)
	reads := defaulting{manager.GetClient(), webhook}
	sets := controllers.NewJobSetReconciler(reads, scheme, manager.GetEventRecorderFor("jobset"))
	utilruntime.Must(sets.SetupWithManager(manager))
	pods := controllers.NewPodReconciler(reads, scheme, manager.GetEventRecorderFor("pod"))
	utilruntime.Must(pods.SetupWithManager(manager))
	utilruntime.Must(manager.Start(ctx))
}
